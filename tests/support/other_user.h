#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>

#include <grp.h>

#include "common/base/check.h"

namespace ddp::test {

inline constexpr uid_t kOtherUser = 65'534;  // "nobody" on Debian.

// Why a test cannot have a process of another user, for GTEST_SKIP; nullptr if it can.
inline const char* no_other_user() {
  if (::geteuid() == 0) return nullptr;
  return "needs root, to start a process of another user";
}

// A process of another user, forked from the test, that does the work and ends.
class OtherUser {
 public:
  explicit OtherUser(const std::function<void()>& work) : pid_(::fork()) {
    DDP_CHECK(pid_ >= 0, "fork failed");
    if (pid_ > 0) return;
    const bool changed = ::setgroups(0, nullptr) == 0 &&
                         ::setresgid(kOtherUser, kOtherUser, kOtherUser) == 0 &&
                         ::setresuid(kOtherUser, kOtherUser, kOtherUser) == 0;
    if (changed) work();
    ::_exit(changed ? 0 : 99);
  }
  ~OtherUser() { wait(); }
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;

  // Its exit status, or -1 if a signal has ended it. The work limits its time itself.
  int wait() {
    if (pid_ < 0) return status_;
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_;
  int status_ = -1;
};

}  // namespace ddp::test
