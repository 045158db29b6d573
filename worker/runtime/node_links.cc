#include "worker/runtime/node_links.h"

#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/errc.h"
#include "common/base/parse_number.h"
#include "worker/transport/tcp.h"

namespace ddp::runtime {

NodeLinks::NodeLinks(const Meeting& meeting, int world_size, Round round, TimePoint deadline)
    : meeting_(meeting),
      world_size_(world_size),
      round_(round),
      deadline_(deadline),
      board_(meeting, world_size, fmt::format("the process group of round {}", round), deadline) {}

Outcome NodeLinks::place(const WorkerEnvironment& worker, Placement& placement) {
  placement = {};
  board_.expect("here");
  if (auto failure = board_.publish(fmt::format("/here/{}", worker.rank), "")) return failure;
  if (worker.virtual_node) return place_by_id(worker, placement);
  if (auto failure = read_node_sizes(worker, placement.node_sizes)) return failure;
  placement.locals.resize(static_cast<std::size_t>(worker.local_size));
  std::iota(placement.locals.begin(), placement.locals.end(), 0);
  return {};
}

Outcome NodeLinks::read_node_sizes(const WorkerEnvironment& worker, std::vector<int>& sizes) {
  if (worker.local_rank == 0) {
    auto failure =
        board_.publish(fmt::format("/node/{}", worker.node), std::to_string(worker.local_size));
    if (failure) return failure;
  }
  for (int node = 0; node < worker.nodes; ++node) {
    std::string text;
    if (auto failure = board_.read(fmt::format("/node/{}", node), text)) return failure;
    const auto size = parse_whole_number<int>(text, 1);
    if (!size) {
      return Failure{Errc::kProtocol, -1,
                     fmt::format("node {} published '{}' as its number of workers", node, text)};
    }
    sizes.push_back(*size);
  }
  const int total = std::accumulate(sizes.begin(), sizes.end(), 0);
  const int before = std::accumulate(sizes.begin(), sizes.begin() + worker.node, 0);
  if (total != worker.world_size || before + worker.local_rank != worker.rank ||
      sizes[static_cast<std::size_t>(worker.node)] != worker.local_size) {
    return Failure{
        Errc::kMismatch, -1,
        fmt::format(
            "the nodes have {} workers ({}), but this one has RANK={} WORLD_SIZE={} GROUP_RANK={} "
            "LOCAL_RANK={} LOCAL_WORLD_SIZE={}",
            total, fmt::join(sizes, " + "), worker.rank, worker.world_size, worker.node,
            worker.local_rank, worker.local_size)};
  }
  return {};
}

// Neighbouring ranks of one agent with the same DDP_VIRTUAL_NODE form a node.
Outcome NodeLinks::place_by_id(const WorkerEnvironment& worker, Placement& placement) {
  const std::string own = fmt::format("{}/{}", worker.node, *worker.virtual_node);
  if (auto failure = board_.publish(fmt::format("/id/{}", worker.rank), own)) return failure;
  std::string last;
  Rank first = 0;
  for (Rank rank = 0; rank < worker.world_size; ++rank) {
    std::string id;
    if (auto failure = board_.read(fmt::format("/id/{}", rank), id)) return failure;
    if (rank == 0 || id != last) {
      placement.node_sizes.push_back(0);
      first = rank;
    }
    const int size = ++placement.node_sizes.back();
    if (first <= worker.rank && worker.rank < first + size) {
      placement.locals.resize(static_cast<std::size_t>(size));
      std::iota(placement.locals.begin(), placement.locals.end(),
                worker.local_rank - (worker.rank - first));
    }
    last = std::move(id);
  }
  return {};
}

Outcome NodeLinks::connect(const transport::Topology& topology,
                           std::vector<std::unique_ptr<transport::Link>>& links) {
  board_.expect("addr");
  if (meeting_.engine == EngineKind::kUcx && meeting_.guard && meeting_.guard->encrypts()) {
    return Failure{
        Errc::kInvalidArgument, topology.rank(),
        "DDP_LINK asks for UCX, which does not encrypt, but this job has --tls-cert: set "
        "DDP_LINK=tcp on all nodes, or run the job without TLS in a network of its own"};
  }
  auto engine = transport::make_data_engine(meeting_.engine);
  if (!engine) return Failure{engine.error().code, topology.rank(), engine.error().message};
  if (auto failure = connect_by(**engine, topology, links)) return failure;
  return establish(topology, links);
}

// Every rank has all its connections by now, and all ranks go through their links in the same
// order. So the smallest pair of nodes that is not done never waits for another pair.
Outcome NodeLinks::establish(const transport::Topology& topology,
                             std::vector<std::unique_ptr<transport::Link>>& links) {
  for (const auto& link : links) {
    if (!link) continue;
    const auto ready = link->establish(deadline_);
    if (ready) continue;
    return Failure{
        ready.error().code, link->peer(),
        fmt::format("rank {} cannot exchange data with rank {} on node {}: {}", topology.rank(),
                    link->peer(), link->peer_node(), ready.error().message)};
  }
  return {};
}

Outcome NodeLinks::connect_by(transport::DataEngine& engine, const transport::Topology& topology,
                              std::vector<std::unique_ptr<transport::Link>>& links) {
  links.resize(static_cast<std::size_t>(topology.nodes()));
  auto listener = transport::TcpListener::open(meeting_.guard);
  if (!listener) return Failure{listener.error().code, topology.rank(), listener.error().message};
  if (auto failure = board_.publish(fmt::format("/addr/{}", topology.rank()),
                                    (*listener)->endpoint(meeting_.addresses)))
    return failure;
  const auto identity = [&](int lower, int upper) {
    const auto rank_on = [&](int node) {
      return node == topology.node() ? topology.rank() : topology.lane_peer(node);
    };
    return transport::LinkIdentity{round_, world_size_,    rank_on(lower),
                                   lower,  rank_on(upper), upper};
  };
  // Connect to higher nodes first: the last node has nobody to connect to, so it accepts at once,
  // and then the others do, in turn.
  for (int node = topology.node() + 1; node < topology.nodes() && topology.has_lane(); ++node) {
    std::string endpoint;
    if (auto failure = board_.read(fmt::format("/addr/{}", topology.lane_peer(node)), endpoint))
      return failure;
    auto link = transport::connect_link(endpoint, identity(topology.node(), node), deadline_,
                                        &engine, meeting_.guard.get());
    if (!link) return board_.explain(link.error());
    links[static_cast<std::size_t>(node)] = std::move(*link);
  }
  if (!topology.has_lane() || topology.node() == 0) return {};
  std::vector<transport::LinkIdentity> expected;
  for (int node = 0; node < topology.node(); ++node)
    expected.push_back(identity(node, topology.node()));
  auto accepted = (*listener)->accept(expected, deadline_, &engine);
  if (!accepted) return board_.explain(accepted.error());
  for (std::size_t node = 0; node < accepted->size(); ++node)
    links[node] = std::move((*accepted)[node]);
  return {};
}

}  // namespace ddp::runtime
