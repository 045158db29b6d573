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

namespace ddp {

// One rank's view of the arenas of its node: it allocates from its own and reaches into the
// others'. What lies in an arena is "registered": collectives read and write it in place.
//
// Memory is backed when it is allocated, and mapped here when a peer's range is first looked up, so
// that no page fault happens while data moves, except at the first use of a peer's buffer.
class Arena {
 public:
  static constexpr std::uint64_t kPrivate = ~std::uint64_t{0};

  Arena(std::shared_ptr<SharedMapping> mapping, int region);

  const std::shared_ptr<SharedMapping>& mapping() const { return mapping_; }

  // Aligned to a page, of undefined content. Null when the arena has no room left. May outlive the
  // Arena. Any thread may allocate and release. Lower addresses come first, so the memory that has
  // been touched is about as large as what was in use at a time.
  //
  // After a failure of a group, ranks that have not noticed it may still write to buffers they were
  // told of.
  enum class Backing { kNow, kAtUse };
  std::shared_ptr<std::byte> allocate(std::size_t bytes, Backing backing = Backing::kNow);
  // Keeps memory that other ranks may still look at until `unused` says that they do not, which it
  // is asked, under a lock, by this and each later call of allocate() and release_later(); or until
  // the Arena ends. Any thread.
  void release_later(std::shared_ptr<std::byte> memory, std::function<bool()> unused);
  // What is allocated, rounded up to pages; with what is kept by release_later(). Any thread.
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
  std::vector<std::vector<std::atomic<std::uint64_t>>> mapped_;  // By region; a bit a granule.
};

}  // namespace ddp
