#pragma once

#include <sys/socket.h>

#include <functional>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "worker/transport/socket_stream.h"
#include "worker/transport/transport.h"

// The memory and the transports of ranks that are threads of this process, or children that it
// forks afterwards.
namespace ddp::test {

inline Result<std::shared_ptr<transport::Segment>> segment_of_all(
    Result<std::shared_ptr<transport::SharedMapping>> mapping, int local_size) {
  if (!mapping) return mapping.error();
  std::vector<int> locals(static_cast<std::size_t>(local_size));
  std::iota(locals.begin(), locals.end(), 0);
  return transport::Segment::of_ranks(std::move(*mapping), std::move(locals));
}

// New memory for the ranks of a node.
inline Result<std::shared_ptr<transport::Segment>> make_segment(int local_size, Round round) {
  return segment_of_all(transport::SharedMapping::create(local_size, round), local_size);
}

// Maps the memfd `fd`, as the agent makes it; the caller keeps `fd`.
inline Result<std::shared_ptr<transport::Segment>> attach_segment(int fd, int local_size,
                                                                  Round round) {
  return segment_of_all(transport::SharedMapping::attach(fd, local_size, round), local_size);
}

// Both ends are closed on exec.
inline std::pair<UniqueFd, UniqueFd> socket_pair() {
  int fds[2];
  DDP_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0, "socketpair failed");
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// One end of a link, that of rank `from`.
using StreamMaker =
    std::function<std::unique_ptr<transport::DataStream>(Rank from, Rank to, UniqueFd socket)>;

// The transports of all ranks of a world: shared memory per node, links between nodes over what
// `make` makes of socket pairs. Element r belongs to rank r. A forked child must destroy all
// elements but its own, or else nobody sees a peer's death. segments: the memory of each node; if
// empty, this function makes it.
inline std::vector<std::unique_ptr<transport::Transport>> transports_over(
    const std::vector<int>& nodes, const StreamMaker& make, Round round = 0, bool spin = false,
    std::vector<std::shared_ptr<transport::Segment>> segments = {}) {
  const auto index = [](int number) { return static_cast<std::size_t>(number); };
  const transport::Topology world(nodes, 0);
  for (std::size_t node = segments.size(); node < nodes.size(); ++node)
    segments.push_back(std::move(make_segment(nodes[node], round)).value());
  std::vector<std::vector<std::unique_ptr<transport::Link>>> links(index(world.world_size()));
  for (auto& of_rank : links) of_rank.resize(nodes.size());
  for (Rank rank = 0; rank < world.world_size(); ++rank) {
    const transport::Topology place(nodes, rank);
    for (int node = place.node() + 1; node < place.nodes(); ++node) {
      const Rank peer = place.lane_peer(node);
      if (peer < 0) continue;
      auto [lower, upper] = socket_pair();
      auto [lower_control, upper_control] = socket_pair();
      links[index(rank)][index(node)] = std::make_unique<transport::Link>(
          make(rank, peer, std::move(lower)), std::move(lower_control), peer, node);
      links[index(peer)][index(place.node())] = std::make_unique<transport::Link>(
          make(peer, rank, std::move(upper)), std::move(upper_control), rank, place.node());
    }
  }
  std::vector<std::unique_ptr<transport::Transport>> transports;
  for (Rank rank = 0; rank < world.world_size(); ++rank) {
    transport::Topology place(nodes, rank);
    auto segment = segments[index(place.node())];
    auto arena = std::make_shared<transport::Arena>(segment->mapping(), place.local_rank());
    transports.push_back(std::make_unique<transport::Transport>(
        std::move(place), std::move(segment), std::move(arena),
        transport::LaneLinks{std::move(links[index(rank)]), {}}, spin));
  }
  return transports;
}

// The same over plain sockets, spinning where a job's transports would.
inline std::vector<std::unique_ptr<transport::Transport>> make_inproc_transports(
    const std::vector<int>& nodes, Round round,
    std::vector<std::shared_ptr<transport::Segment>> segments = {}) {
  const auto plain = [](Rank /*from*/, Rank /*to*/, UniqueFd socket) {
    return std::make_unique<transport::SocketStream>(std::move(socket));
  };
  const int size = transport::Topology(nodes, 0).world_size();
  return transports_over(nodes, plain, round, transport::spinning_pays(size), std::move(segments));
}

}  // namespace ddp::test
