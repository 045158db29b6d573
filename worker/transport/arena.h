#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "worker/transport/shared_mapping.h"

namespace ddp::transport {

// One rank's view of the arenas of its node: it allocates from its own and reaches into the
// others'. What lies in an arena is "registered": collectives read and write it in place.
//
// Memory is backed when it is allocated, and a peer's range is mapped here when it is first looked
// up. So no page fault happens while data moves, except at the first use of a peer's buffer.
class Arena {
 public:
  static constexpr std::uint64_t kPrivate = ~std::uint64_t{0};

  Arena(std::shared_ptr<SharedMapping> mapping, int region);

  const std::shared_ptr<SharedMapping>& mapping() const { return mapping_; }

  // Page-aligned, with undefined content. Null when the arena has no room left. May outlive the
  // Arena. Any thread may allocate and release. Lower addresses are used first, so the memory ever
  // touched is about the peak of what was in use.
  //
  // After a group has failed, ranks that have not noticed it may still write to buffers that they
  // know.
  enum class Backing { kNow, kAtUse };
  std::shared_ptr<std::byte> allocate(std::size_t bytes, Backing backing = Backing::kNow);
  // Keeps memory that other ranks may still read until `unused` returns true, or until the Arena
  // ends. This call and each later call of allocate() and release_later() ask `unused`, under a
  // lock. Any thread.
  void release_later(std::shared_ptr<std::byte> memory, std::function<bool()> unused);
  // Bytes allocated, rounded up to pages, including what release_later() keeps. Any thread.
  std::size_t bytes_in_use();

  // Where the range begins in this rank's region; kPrivate unless all of it lies in the arena. Any
  // thread.
  std::uint64_t offset_of(const void* data, std::size_t bytes) const;

  // The range in the region of a rank of the node, given by offset_of() there. Any thread.
  std::byte* at(int region, std::uint64_t offset, std::size_t bytes);

 private:
  class Free;
  void release_unused();

  std::shared_ptr<SharedMapping> mapping_;
  int region_;
  std::shared_ptr<Free> free_;
  std::mutex retired_mutex_;
  std::vector<std::pair<std::shared_ptr<std::byte>, std::function<bool()>>> retired_;
  std::vector<std::vector<std::atomic<std::uint64_t>>> mapped_;  // By region; one bit per granule.
};

}  // namespace ddp::transport
