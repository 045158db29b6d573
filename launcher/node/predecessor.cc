#include "launcher/node/predecessor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>

#include <fmt/format.h>

#include "common/process/abstract_socket.h"
#include "common/process/spawn_settings.h"

namespace ddp::node {
namespace {

constexpr int kLookAgainMs = 2;

// The name that stands for this rank of this job.
std::string socket_name(const config::JobSpec& spec) {
  return fmt::format("ddp-run {} {} {} {}", spec.node_rank, spec.coordinator_port, spec.job_id,
                     spec.coordinator_host);
}

}  // namespace

UniqueFd wait_for_predecessor(const config::JobSpec& spec, Duration limit) {
  if (spec.node_rank < 0 || spec.node_rank_is_wish || spec.rules.max_nodes == 1) return UniqueFd();
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // Not close-on-exec, because the agent must hold it, too. Above the descriptor numbers that an
  // agent uses.
  UniqueFd place(::fcntl(socket.get(), F_DUPFD, kFirstOwnFd));
  const std::string name = socket_name(spec);
  const TimePoint deadline = Clock::now() + limit;
  while (bind_abstract(place.get(), name) != 0) {
    if (errno != EADDRINUSE || Clock::now() >= deadline) return UniqueFd();
    ::poll(nullptr, 0, kLookAgainMs);
  }
  return place;
}

}  // namespace ddp::node
