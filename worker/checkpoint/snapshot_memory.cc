#include "worker/checkpoint/snapshot_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace ddp::checkpoint {
namespace {

Error memory_error(const char* what, std::uint64_t bytes, int error_number) {
  return make_error(Errc::kIo, "cannot {} {} bytes for a snapshot: {}", what, bytes,
                    std::generic_category().message(error_number));
}

}  // namespace

Result<SnapshotMemory> SnapshotMemory::create(std::uint64_t bytes) {
  DDP_CHECK(bytes > 0, "no bytes");
  SnapshotMemory memory;
  UniqueFd fd(::memfd_create("ddp-snapshot", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return memory_error("make memory of", bytes, errno);
  // Missing memory is an error here; otherwise it would be a SIGBUS at the first touch.
  int result = 0;
  do {
    result = ::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes));
  } while (result < 0 && errno == EINTR);
  if (result < 0) return memory_error("get", bytes, errno);
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
    return memory_error("seal", bytes, errno);
  }
  void* data =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (data == MAP_FAILED) return memory_error("map", bytes, errno);
  memory.fd_ = std::move(fd);
  memory.data_ = static_cast<std::byte*>(data);
  memory.size_ = bytes;
  return memory;
}

Result<SnapshotMemory> SnapshotMemory::map(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  struct stat status {};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd, &status) < 0 ||
      status.st_size <= 0) {
    return make_error(Errc::kInvalidArgument,
                      "descriptor {} is not memory of fixed size (a memfd with F_SEAL_SHRINK)", fd);
  }
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return memory_error("map", bytes, errno);
  SnapshotMemory memory;
  memory.data_ = static_cast<std::byte*>(data);
  memory.size_ = bytes;
  return memory;
}

SnapshotMemory::SnapshotMemory(SnapshotMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

SnapshotMemory& SnapshotMemory::operator=(SnapshotMemory&& other) noexcept {
  if (this == &other) return *this;
  if (data_ != nullptr) ::munmap(data_, size_);
  fd_ = std::move(other.fd_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

SnapshotMemory::~SnapshotMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace ddp::checkpoint
