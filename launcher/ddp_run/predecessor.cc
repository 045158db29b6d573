#include "launcher/ddp_run/predecessor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <string>

#include <fmt/format.h>

#include "launcher/ddp_run/agent_process.h"

namespace ddp::run {
namespace {

constexpr int kLookAgainMs = 2;

// The socket address that stands for this rank of this job. It begins with NUL, which makes it
// abstract, and has no terminator.
socklen_t fill_address(const config::JobSpec& spec, sockaddr_un& address) {
  const std::string name = fmt::format("ddp-run {} {} {} {}", spec.node_rank, spec.coordinator_port,
                                       spec.job_id, spec.coordinator_host);
  address = {};
  address.sun_family = AF_UNIX;
  const std::size_t size = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::copy_n(name.begin(), size, address.sun_path + 1);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
}

}  // namespace

UniqueFd wait_for_predecessor(const config::JobSpec& spec, Duration limit) {
  if (spec.node_rank < 0 || spec.node_rank_is_wish || spec.rules.max_nodes == 1) return UniqueFd();
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // Not close-on-exec, because the agent must hold it, too. Above the descriptor numbers that an
  // agent uses.
  UniqueFd place(::fcntl(socket.get(), F_DUPFD, kFirstOwnFd));
  sockaddr_un address;
  const socklen_t size = fill_address(spec, address);
  const TimePoint deadline = Clock::now() + limit;
  while (::bind(place.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    if (errno != EADDRINUSE || Clock::now() >= deadline) return UniqueFd();
    ::poll(nullptr, 0, kLookAgainMs);
  }
  return place;
}

}  // namespace ddp::run
