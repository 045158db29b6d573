#include "common/process/process_end.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace ddp {

UniqueFd watch_child(pid_t child) {
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  if (pidfd) return pidfd;
  const int error = errno;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  errno = error;
  return pidfd;
}

bool has_ended(int pidfd) {
  pollfd end{pidfd, POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&end, 1, 0);
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

}  // namespace ddp
