#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "worker/checkpoint/file_system.h"

namespace ddp::checkpoint {

// Writes a zip of uncompressed records whose data begins at multiples of 64 bytes, so that a reader
// can map it. Uses zip64 if sizes, offsets or counts need it. Has no dates, so the same records
// give the same bytes.
class StoredZip {
 public:
  // `file` must be empty and outlive the object.
  explicit StoredZip(WritableFile& file) : file_(&file) {}

  Result<void> add(const std::string& name, std::span<const std::byte> data);
  Result<void> add(const std::string& name, std::string_view text);
  // Writes the table of contents. Must be the last call.
  Result<void> finish();

 private:
  struct Record {
    std::string name;
    std::uint64_t size;
    std::uint64_t offset;  // Of the local header.
    std::uint32_t crc;
  };

  Result<void> append(std::string_view bytes);

  WritableFile* file_;
  std::uint64_t at_ = 0;
  std::vector<Record> records_;
};

}  // namespace ddp::checkpoint
