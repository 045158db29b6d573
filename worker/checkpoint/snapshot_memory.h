#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/result.h"
#include "common/base/unique_fd.h"

namespace ddp::checkpoint {

// Unnamed memory that can be handed to another process by its descriptor. Movable. The memory is
// freed when the last descriptor and the last mapping in all processes are gone.
class SnapshotMemory {
 public:
  // New memory, zeroed, with all pages allocated. Nobody can make it smaller. kIo if there is not
  // enough; then nothing is left behind.
  static Result<SnapshotMemory> create(std::uint64_t bytes);
  // Maps such memory read-only. kInvalidArgument if the descriptor is not such memory or could
  // still be made smaller. The caller keeps the descriptor.
  static Result<SnapshotMemory> map(int fd);

  SnapshotMemory() = default;
  SnapshotMemory(SnapshotMemory&& other) noexcept;
  SnapshotMemory& operator=(SnapshotMemory&& other) noexcept;
  ~SnapshotMemory();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Only for memory from create(); else empty.
  std::span<std::byte> writable() { return {data_, fd_ ? size_ : 0}; }
  // Only for memory from create(); else -1.
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace ddp::checkpoint
