#pragma once

#include <memory>
#include <string>

#include "common/store/store.h"

namespace ddp {

// A store in one file that all processes of one machine, or of machines that share the file system,
// open. Changes are appended as records under an exclusive flock(); every object replays them into
// its own map. A writer killed in the middle of a record does no harm: the next one cuts it off.
// The file only grows, so it suits a run's worth of keys; whoever made it removes it. Objects that
// have it open, and their clones, go on using a file that has been removed.
// One object serves one thread of one process: after fork() the child opens its own.
class FileStore {
 public:
  // Makes the file if it is absent. kIo with errno's text; kCorrupt if it is not such a file.
  static Result<std::unique_ptr<Store>> open(const std::string& path);
};

}  // namespace ddp
