#pragma once

#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include <gtest/gtest.h>
#include <sched.h>

namespace ddp::test {

// Runs the body in a child process that has its own tmpfs at `mount_point`. Returns the body's
// result, or an empty text if this process may not mount. Not for programs with threads.
inline std::string in_private_tmpfs(const std::string& mount_point, const std::string& options,
                                    const std::function<std::string()>& body) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::string answer;
    if (::unshare(CLONE_NEWNS) == 0 &&
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
        ::mount("tmpfs", mount_point.c_str(), "tmpfs", 0, options.c_str()) == 0) {
      answer = body();
    }
    const ssize_t sent = ::write(ends[1], answer.data(), answer.size());
    ::_exit(sent == static_cast<ssize_t>(answer.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string answer;
  char piece[4096];
  for (ssize_t got = 0; (got = ::read(ends[0], piece, sizeof piece)) > 0;) {
    answer.append(piece, static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return answer;
}

}  // namespace ddp::test
