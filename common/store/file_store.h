#pragma once

#include <memory>
#include <string>

#include "common/store/store.h"

namespace ddp::store {

// Opens a store in one file, which processes of one machine, or of machines that share a file
// system, use together. Changes are appended as records under an exclusive flock(). Every object
// replays them into its own map. If a writer is killed in the middle of a record, the next writer
// cuts that record off. The file only grows, so use it for the keys of one run. The store never
// removes the file. Objects that have it open, and their clones, can go on using a removed file.
// One object serves one thread of one process: after fork() the child opens its own.
//
// Makes the file if it is absent. kIo with errno's text; kCorrupt if it is not a store file.
Result<std::unique_ptr<Store>> open_file_store(const std::string& path);

}  // namespace ddp::store
