#pragma once

#include <errno.h>
#include <sys/socket.h>

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
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

struct LinkPair {
  std::unique_ptr<transport::Link>
      lower;  // Held by the rank of the lower node; leads to the higher one.
  std::unique_ptr<transport::Link> upper;
};

inline Result<LinkPair> make_link_pair(Rank lower, int lower_node, Rank upper, int upper_node) {
  int data[2];
  int control[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, data) != 0) {
    return make_error(Errc::kIo, "socketpair: {}", std::generic_category().message(errno));
  }
  UniqueFd data_lower(data[0]);
  UniqueFd data_upper(data[1]);
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) != 0) {
    return make_error(Errc::kIo, "socketpair: {}", std::generic_category().message(errno));
  }
  UniqueFd control_lower(control[0]);
  UniqueFd control_upper(control[1]);
  return LinkPair{std::make_unique<transport::Link>(
                      std::make_unique<transport::SocketStream>(std::move(data_lower)),
                      std::move(control_lower), upper, upper_node),
                  std::make_unique<transport::Link>(
                      std::make_unique<transport::SocketStream>(std::move(data_upper)),
                      std::move(control_upper), lower, lower_node)};
}

// The transports of all ranks of a world: shared memory per node, socket pairs between nodes.
// Element r belongs to rank r. A forked child must destroy all elements but its own, or else nobody
// sees a peer's death. segments: the memory of each node; if empty, this function makes it.
inline Result<std::vector<std::unique_ptr<transport::Transport>>> make_inproc_transports(
    const std::vector<int>& node_sizes, Round round,
    std::vector<std::shared_ptr<transport::Segment>> segments = {}) {
  const transport::Topology world(node_sizes, 0);
  for (std::size_t node = segments.size(); node < node_sizes.size(); ++node) {
    auto segment = make_segment(node_sizes[node], round);
    if (!segment) return segment.error();
    segments.push_back(std::move(*segment));
  }
  const auto ranks = static_cast<std::size_t>(world.world_size());
  const auto index = [](int number) { return static_cast<std::size_t>(number); };
  std::vector<std::vector<std::unique_ptr<transport::Link>>> links(ranks);
  for (auto& of_rank : links) of_rank.resize(node_sizes.size());
  for (Rank rank = 0; rank < world.world_size(); ++rank) {
    const transport::Topology place(node_sizes, rank);
    for (int node = place.node() + 1; node < place.nodes(); ++node) {
      const Rank peer = place.lane_peer(node);
      if (peer < 0) continue;
      auto pair = make_link_pair(rank, place.node(), peer, node);
      if (!pair) return pair.error();
      links[index(rank)][index(node)] = std::move(pair->lower);
      links[index(peer)][index(place.node())] = std::move(pair->upper);
    }
  }
  std::vector<std::unique_ptr<transport::Transport>> transports;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    transport::Topology place(node_sizes, static_cast<Rank>(rank));
    auto segment = segments[index(place.node())];
    auto arena = std::make_shared<transport::Arena>(segment->mapping(), place.local_rank());
    transports.push_back(std::make_unique<transport::Transport>(
        std::move(place), std::move(segment), std::move(arena), std::move(links[rank]),
        transport::spinning_pays(world.world_size())));
  }
  return transports;
}

}  // namespace ddp::test
