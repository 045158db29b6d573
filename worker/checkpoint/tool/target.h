#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "worker/checkpoint/directory.h"

namespace ddp::checkpoint {

// What a path on the command line means: one checkpoint if its last part is named like one, else a
// folder of them, newest first.
struct Target {
  std::string path;  // As given.
  bool is_one = false;
  Directory directory;
  std::vector<Entry> entries;
};

// kNotFound and kIo as the file system gives them.
Result<Target> find_target(const std::string& path);

// The newest of them whose every checksum holds; a line to `err` for each passed over. kNotFound if
// there is none.
Result<ValidSearch::Found> newest_valid(const Target& target, std::ostream& err);

// Of all files but the manifest.
std::uint64_t bytes_of(const Manifest& manifest);

}  // namespace ddp::checkpoint
