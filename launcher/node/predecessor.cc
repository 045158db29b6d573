#include "launcher/node/predecessor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>

#include <fmt/format.h>

#include "common/process/abstract_socket.h"
#include "common/process/spawn_settings.h"
#include "common/process/user_gate.h"

namespace ddp::node {
namespace {

constexpr int kLookAgainMs = 2;
constexpr int kMostRefused = 50;

// The name that stands for this rank of this job.
std::string socket_name(const config::JobSpec& spec) {
  return fmt::format("ddp-run {} {} {} {}", spec.node_rank, spec.coordinator_port, spec.job_id,
                     spec.coordinator_host);
}

// Whether another user has taken the name, which anybody can compute. Our processes listen at it,
// so that the kernel says whose they are; nobody connects for another reason. `refused` counts.
bool is_strangers(const std::string& name, int& refused) {
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connect_abstract(socket.get(), name) == 0) return !is_own_users(socket.get());
  // Ours do not listen for a moment at their beginning.
  if (errno == ECONNREFUSED) return ++refused > kMostRefused;
  return errno != EAGAIN;  // So many have connected that nobody can see whose it is.
}

}  // namespace

UniqueFd wait_for_predecessor(const config::JobSpec& spec, Duration limit) {
  if (spec.node_rank < 0 || spec.node_rank_is_wish || spec.rules.max_nodes == 1) return UniqueFd();
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // Not close-on-exec, because the agent must hold it, too. Above the descriptor numbers that an
  // agent uses.
  UniqueFd place(::fcntl(socket.get(), F_DUPFD, kFirstOwnFd));
  const std::string name = socket_name(spec);
  int refused = 0;
  const TimePoint deadline = Clock::now() + limit;
  while (bind_abstract(place.get(), name) != 0) {
    if (errno != EADDRINUSE || Clock::now() >= deadline || is_strangers(name, refused))
      return UniqueFd();
    ::poll(nullptr, 0, kLookAgainMs);
  }
  ::listen(place.get(), 1);
  return place;
}

}  // namespace ddp::node
