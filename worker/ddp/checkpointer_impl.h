#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/checkpoint/directory.h"
#include "worker/ddp/checkpointer.h"
#include "worker/ddp/comm_hook.h"
#include "worker/ddp/optimizer_state.h"
#include "worker/ddp/state_dict.h"

// Inside of Checkpointer: what is registered, and the two collective procedures over it.
namespace ddp {

struct Checkpointer::Impl {
  struct RegisteredModule {
    std::string name;
    torch::nn::Module* module;
  };
  struct RegisteredOptimizer {
    std::string name;
    std::unique_ptr<OptimizerState> state;
  };
  struct RegisteredHook {
    std::string name;
    CommHook* hook;
  };
  struct RegisteredValue {
    std::string name;
    std::function<nlohmann::json()> save;
    std::function<void(const nlohmann::json&)> load;
    bool per_rank;
  };

  Impl(CheckpointOptions chosen, std::shared_ptr<ProcessGroup> process_group,
       checkpoint::FileSystem& file_system);

  Result<void> prepare();
  Result<std::string> save(std::int64_t step, std::int64_t epoch);
  Result<LoadReport> load_latest();

  // Kind and name of everything registered, in order: equal on all ranks.
  std::string registration() const;

  CheckpointOptions options;
  std::shared_ptr<ProcessGroup> group;
  checkpoint::FileSystem& files;
  checkpoint::Directory directory;
  std::vector<RegisteredModule> modules;
  std::vector<RegisteredOptimizer> optimizers;
  std::vector<std::string> rngs;
  std::vector<RegisteredHook> hooks;
  std::vector<RegisteredValue> values;
  std::vector<std::string> warnings;
};

// A word that no other writer, now or earlier, has used.
std::string unique_word();

}  // namespace ddp
