#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/result.h"
#include "common/base/unique_fd.h"

namespace ddp::checkpoint {

// Memory without a name that can be handed to another process by its descriptor. Movable; the
// memory is gone when the last descriptor and the last mapping of all processes are.
class SnapshotMemory {
 public:
  // New memory, zeroed and present: no page of it is missing later. It cannot be made smaller by
  // anybody. kIo if there is not enough; nothing is left then.
  static Result<SnapshotMemory> create(std::uint64_t bytes);
  // Somebody's memory, read only. kInvalidArgument if the descriptor is not such memory, or could
  // still be made smaller under the reader's feet. The descriptor stays the caller's.
  static Result<SnapshotMemory> map(int fd);

  SnapshotMemory() = default;
  SnapshotMemory(SnapshotMemory&& other) noexcept;
  SnapshotMemory& operator=(SnapshotMemory&& other) noexcept;
  ~SnapshotMemory();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Of created memory only.
  std::span<std::byte> writable() { return {data_, fd_ ? size_ : 0}; }
  // Of created memory; -1 else.
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace ddp::checkpoint
