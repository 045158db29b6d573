#include "agent/process/failure_time.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>

#include "common/base/unique_fd.h"

namespace ddp::agent {
namespace {

constexpr std::int64_t kSecond = 1'000;

std::int64_t milliseconds(const timespec& time) {
  return static_cast<std::int64_t>(time.tv_sec) * kSecond + time.tv_nsec / 1'000'000;
}

}  // namespace

std::int64_t failure_time(const FailureClues& clues) {
  if (clues.stamp_ms <= 0) {
    return clues.written_ms > 0 ? std::min(clues.written_ms, clues.ended_ms) : clues.ended_ms;
  }
  // The file is written just after its time was taken, and its stamp comes from a clock whose ticks
  // lag behind. The stamp is of no use if the file was copied later, or is on a server with another
  // clock. Then only the second in the file is known.
  const std::int64_t last = clues.stamp_ms + kSecond - 1;
  const bool is_near =
      clues.written_ms >= clues.stamp_ms - kSecond && clues.written_ms <= last + kSecond;
  const std::int64_t time = is_near ? std::clamp(clues.written_ms, clues.stamp_ms, last) : last;
  return std::max(std::min(time, clues.ended_ms), clues.stamp_ms);
}

std::int64_t file_clock_ms() {
  static const UniqueFd kFile(::memfd_create("ddp-clock", MFD_CLOEXEC));
  struct stat status {};
  // A file whose time was read gets a finer stamp at its next change (Linux 6.13, "multigrain"),
  // and files that change later never get an earlier stamp.
  if (::fstat(kFile.get(), &status) != 0 || ::futimens(kFile.get(), nullptr) != 0 ||
      ::fstat(kFile.get(), &status) != 0) {
    ::clock_gettime(CLOCK_REALTIME_COARSE, &status.st_mtim);
  }
  return milliseconds(status.st_mtim);
}

Duration age_of(std::int64_t time_ms) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return Duration{std::max<std::int64_t>(0, milliseconds(now) - time_ms)};
}

std::int64_t written_ms(const char* path) {
  struct stat status {};
  return ::stat(path, &status) == 0 ? milliseconds(status.st_mtim) : 0;
}

}  // namespace ddp::agent
