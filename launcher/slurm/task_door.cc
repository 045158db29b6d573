#include "launcher/slurm/task_door.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "common/process/abstract_socket.h"
#include "common/process/spawn_settings.h"
#include "common/process/user_gate.h"
#include "common/wire/frame.h"
#include "common/wire/task_messages.h"

namespace ddp::slurm {
namespace {

constexpr int kBacklog = 1'024;

bool readable(int fd, TimePoint deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<Duration>(deadline - Clock::now());
    pollfd item{fd, POLLIN, 0};
    const int ready = ::poll(&item, 1, static_cast<int>(std::max<Duration::rep>(left.count(), 0)));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

// Reads what the task has sent. Closing a unix socket with unread bytes would discard what was sent
// to the task.
void read_all(int socket) {
  std::array<char, 16 * 1024> buffer;
  while (::recv(socket, buffer.data(), buffer.size(), MSG_DONTWAIT) > 0) {
  }
}

}  // namespace

std::string task_socket_name(const Step& step) {
  return fmt::format("ddp-run tasks {} {}", step.run_id(), step.node_rank);
}

Result<UniqueFd> open_task_door(const Step& step) {
  const std::string name = task_socket_name(step);
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  UniqueFd door(::fcntl(socket.get(), F_DUPFD, kFirstOwnFd));
  if (bind_abstract(door.get(), name) != 0 || ::listen(door.get(), kBacklog) != 0) {
    const int error = errno;
    return make_error(error == EADDRINUSE ? Errc::kExists : Errc::kIo,
                      "the socket @{} for the tasks of this node: {}", name,
                      std::generic_category().message(error));
  }
  return door;
}

void dismiss_tasks(const UniqueFd& door, int exit_code, int count, Duration limit) {
  const std::string frame = wire::encode_frame(wire::encode(wire::Dismiss{exit_code}));
  const TimePoint deadline = Clock::now() + limit;
  for (int dismissed = 0; dismissed < count && readable(door.get(), deadline);) {
    const UniqueFd task(::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!task) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) continue;
      return;
    }
    if (!is_own_users(task.get())) continue;
    // A task sends its greeting at once; a connection without one is not a task.
    if (!readable(task.get(), std::min(deadline, Clock::now() + Duration(200)))) continue;
    read_all(task.get());
    if (::send(task.get(), frame.data(), frame.size(), MSG_NOSIGNAL) ==
        static_cast<ssize_t>(frame.size()))
      ++dismissed;
    ::shutdown(task.get(), SHUT_WR);
    read_all(task.get());
  }
}

}  // namespace ddp::slurm
