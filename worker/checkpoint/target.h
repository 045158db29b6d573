#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "worker/checkpoint/directory.h"

namespace ddp::checkpoint {

// What a path means that a user gives: one checkpoint if that is its name, or the name of what it
// links to (`latest`); else a folder of checkpoints, newest first.
struct Target {
  std::string path;  // As given.
  Directory directory;
  std::vector<Entry> entries;
};

// kNotFound and kIo as the file system reports them.
Result<Target> find_target(const std::string& path);

// The newest of them whose checksums are all right; prints a line to `err` for each one passed
// over. kNotFound if there is none.
Result<ValidSearch::Found> newest_valid(const Target& target, std::ostream& err);

// Of all files but the manifest.
std::uint64_t bytes_of(const Manifest& manifest);

}  // namespace ddp::checkpoint
