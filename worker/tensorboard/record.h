#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace ddp::tensorboard {

// An event file is a sequence of records (tensorflow/core/lib/io/record_writer.cc): the length of
// the data in 8 bytes, the length's checksum in 4, the data, the data's checksum in 4; numbers are
// little-endian, checksums are masked_crc32c().
std::string record_of(std::string_view data);

struct ByteRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
struct StepsUpTo {
  std::vector<ByteRange> ranges;  // In order, apart from each other. None in an empty file.
  std::map<std::string, std::int64_t> newest;  // The last of these steps, by tag.
};

// The records of an event file that are of `last_step` and earlier steps. What a write that was cut
// short left at the end is none: a part of a record, or zeros.
//
// Reads `file` from its beginning. kCorrupt, with the place, if it holds anything else than an
// event file does. kIo if it cannot be read.
Result<StepsUpTo> find_steps_up_to(std::FILE* file, std::int64_t last_step);

}  // namespace ddp::tensorboard
