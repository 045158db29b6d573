#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker/checkpoint/directory.h"
#include "worker/ddp/checkpointer.h"
#include "worker/ddp/registered_state.h"

// Inside of Checkpointer: what is registered, and the two collective procedures over it.
namespace ddp {

struct Checkpointer::Impl : RegisteredState {
  Impl(CheckpointOptions chosen, std::shared_ptr<ProcessGroup> process_group,
       checkpoint::FileSystem& file_system);

  Result<void> prepare();
  Result<std::string> save(std::int64_t step, std::int64_t epoch);
  Result<LoadReport> load_latest();

  CheckpointOptions options;
  std::shared_ptr<ProcessGroup> group;
  checkpoint::FileSystem& files;
  checkpoint::Directory directory;
  std::vector<std::string> warnings;
};

// A word that no other writer, now or earlier, has used.
std::string unique_word();

}  // namespace ddp
