#pragma once

#include <cstddef>
#include <span>

namespace ddp {

// Host memory that CUDA devices write to directly ("pinned"), at the full speed of the bus and
// while the host does something else. Pinning takes about as long as filling the memory, so it pays
// for memory that is kept. (LibTorch can only allocate such memory; ours comes from elsewhere.)
class PinnedMemory {
 public:
  PinnedMemory() = default;
  ~PinnedMemory() { unpin(); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Pins memory instead of what is pinned, if this thread uses CUDA; else, or if CUDA refuses,
  // copies into it are just slower.
  void pin(std::span<std::byte> memory);
  // Must come before the memory is unmapped.
  void unpin();

 private:
  void* begin_ = nullptr;  // Null: nothing is pinned.
};

}  // namespace ddp
