#include "worker/checkpoint/posix_writable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "worker/checkpoint/posix_calls.h"
#include "worker/checkpoint/safetensors.h"

namespace ddp::checkpoint {
namespace {

// The system takes at most 2 GiB at a time; smaller pieces keep a slow disk interruptible.
constexpr std::size_t kMostAtOnce = std::size_t{16} << 20;
constexpr std::uint64_t kWindow = std::uint64_t{8} << 20;
constexpr std::uint64_t kBehind = 4 * kWindow;

}  // namespace

Result<void> PosixWritableFile::sync() {
  if (retry_interrupted([this] { return ::fsync(fd_.get()); }) < 0) {
    return io_error("write to disk", path_, errno);
  }
  return {};
}

Result<void> PosixWritableFile::close() {
  // On Linux the descriptor is closed even after EINTR; closing it again could close another file.
  if (::close(fd_.release()) < 0 && errno != EINTR) return io_error("close", path_, errno);
  return {};
}

Result<std::size_t> PosixWritableFile::write_some(std::span<const std::byte> bytes) {
  bytes = bytes.first(std::min(bytes.size(), kMostAtOnce));
  if (const std::size_t direct = direct_part(bytes); direct > 0 && set_direct(true)) {
    auto written = write(bytes.first(direct));
    if (written) pushed_ = written_;
    // A file system may accept the flag and still refuse the bytes.
    if (written || written.error().code != Errc::kInvalidArgument) return written;
    can_be_direct_ = false;
  }
  set_direct(false);
  auto written = write(bytes);
  if (!written) return written;
  if (auto pushed = push_to_disk(); !pushed) return pushed.error();
  return written;
}

std::size_t PosixWritableFile::direct_part(std::span<const std::byte> bytes) const {
  const auto place = reinterpret_cast<std::uintptr_t>(bytes.data());
  const bool aligned = place % kDataAlignment == 0 && written_ % kDataAlignment == 0;
  return can_be_direct_ && aligned ? bytes.size() / kDataAlignment * kDataAlignment : 0;
}

bool PosixWritableFile::set_direct(bool direct) {
  if (direct == is_direct_) return true;
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  const int wanted = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
  if (flags < 0 || ::fcntl(fd_.get(), F_SETFL, wanted) < 0) {
    can_be_direct_ = false;
    return false;
  }
  is_direct_ = direct;
  return true;
}

Result<std::size_t> PosixWritableFile::write(std::span<const std::byte> bytes) {
  const ssize_t written =
      retry_interrupted([&] { return ::write(fd_.get(), bytes.data(), bytes.size()); });
  if (written < 0 && errno == EINVAL && is_direct_) {
    return make_error(Errc::kInvalidArgument, "{} does not support direct writes", path_);
  }
  if (written < 0) return io_error("write", path_, errno);
  if (written == 0) return io_error("write", path_, EIO);
  written_ += static_cast<std::size_t>(written);
  return static_cast<std::size_t>(written);
}

// Starts writing data to the disk while more arrives, and waits for data that is far behind. So
// little is left for sync(), little memory is dirty, and others can see the progress by the file's
// size. A failure is reported here or never.
Result<void> PosixWritableFile::push_to_disk() {
  for (; pushing_ && pushed_ + kWindow <= written_; pushed_ += kWindow) {
    if (auto begun = sync_range(pushed_, SYNC_FILE_RANGE_WRITE); !begun) return begun;
    if (pushed_ < kBehind) continue;
    auto waited =
        sync_range(pushed_ - kBehind, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                                          SYNC_FILE_RANGE_WAIT_AFTER);
    if (!waited) return waited;
  }
  return {};
}

Result<void> PosixWritableFile::sync_range(std::uint64_t offset, unsigned flags) {
  const int result = retry_interrupted(
      [&] { return ::sync_file_range(fd_.get(), static_cast<off64_t>(offset), kWindow, flags); });
  if (result == 0) return {};
  if (errno == EIO || errno == ENOSPC || errno == EDQUOT) {
    return io_error("write to disk", path_, errno);
  }
  pushing_ = false;  // This file system does not support it.
  return {};
}

}  // namespace ddp::checkpoint
