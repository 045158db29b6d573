#pragma once

#include <cstdint>
#include <string>

#include "common/base/unique_fd.h"
#include "worker/checkpoint/file_system.h"

namespace ddp::checkpoint {

// A file that is being written, by its descriptor.
//
// Bytes whose offsets in memory and in the file are multiples of kDataAlignment bypass the page
// cache (O_DIRECT) if the file system supports it. Then the system neither copies them nor
// allocates memory for the copy, which otherwise takes most of a save's processor time, and does
// not evict cached data of the training. The rest is written as usual.
class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Result<void> sync() override;
  Result<void> close() override;

 private:
  Result<std::size_t> write_some(std::span<const std::byte> bytes) override;
  // How many of the bytes can go directly.
  std::size_t direct_part(std::span<const std::byte> bytes) const;
  bool set_direct(bool direct);
  Result<std::size_t> write(std::span<const std::byte> bytes);
  Result<void> push_to_disk();
  Result<void> sync_range(std::uint64_t offset, unsigned flags);

  UniqueFd fd_;
  std::string path_;
  bool can_be_direct_ = true;  // As far as known.
  bool is_direct_ = false;
  std::uint64_t written_ = 0;
  std::uint64_t pushed_ = 0;  // Bytes whose writing was started, or that were written directly.
  bool pushing_ = true;
};

}  // namespace ddp::checkpoint
