#pragma once

#include <atomic>
#include <cstdint>

#include "worker/transport/segment_layout.h"

// How the ranks of a node see at once that one of them died, however large its memory is: the
// kernel marks a robust mutex when the thread that holds it ends, before it frees the process's
// memory.
//
// The watchers do not lock the mutex. They sleep on its lock word, which is the first member of
// glibc's pthread_mutex_t (__data.__lock) and has the layout that the kernel prescribes for robust
// futexes: the owner's thread id, FUTEX_OWNER_DIED once the owner has died, and FUTEX_WAITERS,
// without which the kernel wakes nobody. A watcher sets that last bit itself. The kernel wakes one
// sleeper, which wakes the others by raising the abort word.
//
// A core dump is written before the kernel marks the mutex.
namespace ddp::transport {

// This rank is present as long as the object lives. Make and destroy it on the thread that stands
// for the rank. If that thread ends without destroying it, the others take the rank for dead, so
// the thread must live as long as the process takes part. Destruction is an orderly departure. A
// rank may come back.
class LifeLineHold {
 public:
  explicit LifeLineHold(LifeLine& line);
  ~LifeLineHold();
  LifeLineHold(const LifeLineHold&) = delete;
  LifeLineHold& operator=(const LifeLineHold&) = delete;

  // False while another thread stands for the same rank; retry() tries to take its place.
  bool holds() const { return holds_; }
  void retry();

 private:
  LifeLine& line_;
  bool holds_ = false;
};

struct LifeSign {
  enum class Kind { kAbsent, kPresent, kDead };
  Kind kind = Kind::kAbsent;
  // Changes and wakes its sleepers when `kind` may have changed: sleep on it while it holds
  // `value`.
  std::atomic<std::uint32_t>* word = nullptr;
  std::uint32_t value = 0;
};

// Any thread of any process.
LifeSign look_at(LifeLine& line);

}  // namespace ddp::transport
