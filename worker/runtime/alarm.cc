#include "worker/runtime/alarm.h"

#include <errno.h>
#include <sys/timerfd.h>

#include "common/base/check.h"

namespace ddp::runtime {

Alarm::Alarm() : fd_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  DDP_CHECK(static_cast<bool>(fd_), "timerfd: errno {}", errno);
}

void Alarm::set(std::chrono::nanoseconds delay) {
  if (is_set_) return;
  is_set_ = true;
  itimerspec when{};
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(delay);
  when.it_value.tv_sec = seconds.count();
  when.it_value.tv_nsec = (delay - seconds).count();
  (void)::timerfd_settime(fd_.get(), 0, &when, nullptr);
}

void Alarm::clear() {
  if (!is_set_) return;
  is_set_ = false;
  const itimerspec never{};
  (void)::timerfd_settime(fd_.get(), 0, &never, nullptr);
}

}  // namespace ddp::runtime
