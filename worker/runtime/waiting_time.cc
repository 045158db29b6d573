#include "worker/runtime/waiting_time.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "worker/runtime/trace.h"

namespace ddp::runtime {
namespace {

using std::chrono::nanoseconds;

// Of this process.
struct WaitAccount {
  std::mutex mutex;  // Guards everything here.
  int waiters = 0;
  TimePoint since;     // When the first of the waiters began.
  TimePoint last_end;  // When the last of them ended, some time ago.
  nanoseconds waited{0};
  // The newest operation with a future.
  TimePoint future_issued;
  nanoseconds waited_before{0};  // Until it was issued.
  TimePoint future_done;
  nanoseconds future_wait{0};  // The wait for it, once it is done.
} account;

thread_local bool waits_are_ignored = false;

}  // namespace

Waiting::Waiting(TimePoint since) : counts_(!waits_are_ignored) {
  if (!counts_) return;
  const std::lock_guard lock(account.mutex);
  if (account.waiters++ == 0) account.since = since;
}

void Waiting::end(TimePoint now) {
  if (!std::exchange(counts_, false)) return;
  const std::lock_guard lock(account.mutex);
  if (--account.waiters > 0) return;
  account.waited += std::max(nanoseconds(now - account.since), nanoseconds(0));
  account.last_end = now;
  if (is_traced()) trace_span("wait", "wait for other ranks", account.since, now);
}

void ignore_waits_of_this_thread() { waits_are_ignored = true; }

void future_issued(TimePoint issued) {
  const std::lock_guard lock(account.mutex);
  account.future_issued = issued;
  account.waited_before = account.waited;
  account.future_wait = nanoseconds(0);
}

void future_done(TimePoint issued) {
  const std::lock_guard lock(account.mutex);
  if (issued != account.future_issued) return;
  const nanoseconds counted = account.waited - account.waited_before;
  account.future_done = Clock::now();
  account.future_wait =
      std::max(nanoseconds(account.future_done - issued) - counted, nanoseconds(0));
}

void future_is_waited_for(TimePoint issued) {
  const std::lock_guard lock(account.mutex);
  if (issued != account.future_issued) return;
  account.future_issued = {};
  account.future_wait = nanoseconds(0);
}

nanoseconds computed_time(TimePoint now) {
  const std::lock_guard lock(account.mutex);
  if (account.future_wait > nanoseconds(0) && is_traced()) {
    // What the thread has waited for itself is a span already.
    const TimePoint begin = std::max(account.future_done - account.future_wait, account.last_end);
    if (begin < account.future_done)
      trace_span("wait", "wait for other ranks", begin, account.future_done);
  }
  account.waited += std::exchange(account.future_wait, nanoseconds(0));
  account.future_issued = {};
  return nanoseconds(now.time_since_epoch()) - account.waited;
}

}  // namespace ddp::runtime
