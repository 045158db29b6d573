#include "worker/transport/lifeline.h"

#include <errno.h>
#include <linux/futex.h>

#include <mutex>
#include <new>

#include "common/base/check.h"
#include "worker/transport/futex.h"

namespace ddp::transport {
namespace {

static_assert(sizeof(pthread_mutex_t::__data.__lock) == sizeof(std::uint32_t));
static_assert(offsetof(pthread_mutex_t, __data.__lock) == 0);
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

std::atomic<std::uint32_t>& lock_word(LifeLine& line) {
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(&line.mutex);
}

void initialise(pthread_mutex_t& mutex) {
  pthread_mutexattr_t attributes;
  DDP_CHECK(::pthread_mutexattr_init(&attributes) == 0);
  DDP_CHECK(::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
  DDP_CHECK(::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
  DDP_CHECK(::pthread_mutex_init(&mutex, &attributes) == 0);
  ::pthread_mutexattr_destroy(&attributes);
}

// Only a rank's own process initialises its mutex, but two of its threads may try.
std::mutex& initialising() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

LifeLineHold::LifeLineHold(LifeLine& line) : line_(line) {
  {
    const std::lock_guard lock(initialising());
    if (line_.prepared.load() == 0) {
      initialise(line_.mutex);
      line_.prepared.store(1);
    }
  }
  retry();
}

void LifeLineHold::retry() {
  if (holds_) return;
  const int locked = ::pthread_mutex_trylock(&line_.mutex);
  if (locked == EBUSY) return;
  if (locked == EOWNERDEAD) DDP_CHECK(::pthread_mutex_consistent(&line_.mutex) == 0);
  DDP_CHECK(locked == 0 || locked == EOWNERDEAD, "locking a lifeline: {}", locked);
  holds_ = true;
  // Only now, so that whoever sees the rank also sees the mutex locked.
  const std::uint32_t before = line_.presence.load();
  line_.presence.store(before % 2 == 0 ? before + 1 : before + 2);
  futex_wake_all(line_.presence);
}

LifeLineHold::~LifeLineHold() {
  if (!holds_) return;
  // First, so that nobody takes the unlocked mutex for anything else.
  line_.presence.fetch_add(1);
  ::pthread_mutex_unlock(&line_.mutex);
  // Unlocking wakes one sleeper.
  futex_wake_all(lock_word(line_));
}

LifeSign look_at(LifeLine& line) {
  for (;;) {
    const std::uint32_t presence = line.presence.load();
    if (presence % 2 == 0) return {LifeSign::Kind::kAbsent, &line.presence, presence};
    std::atomic<std::uint32_t>& word = lock_word(line);
    std::uint32_t value = word.load();
    if ((value & FUTEX_OWNER_DIED) != 0) {
      // Not a death if it had said good-bye before.
      if (line.presence.load() != presence) continue;
      return {LifeSign::Kind::kDead, &word, value};
    }
    // Unlocked: the rank has just left.
    if ((value & FUTEX_TID_MASK) == 0) continue;
    if ((value & FUTEX_WAITERS) == 0 &&
        !word.compare_exchange_strong(value, value | FUTEX_WAITERS)) {
      continue;
    }
    return {LifeSign::Kind::kPresent, &word, value | FUTEX_WAITERS};
  }
}

}  // namespace ddp::transport
