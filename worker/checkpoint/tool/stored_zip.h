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

// Writes a zip of uncompressed records whose data lie at multiples of 64 bytes, so that a reader
// can map them. With zip64 where sizes, places or numbers need it. Without dates: the same records
// give the same bytes.
class StoredZip {
 public:
  // `file` is empty yet and outlives the object.
  explicit StoredZip(WritableFile& file) : file_(&file) {}

  Result<void> add(const std::string& name, std::span<const std::byte> data);
  Result<void> add(const std::string& name, std::string_view text);
  // The table of contents. The last call.
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
