#include "worker/runtime/node_links.h"

#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/errc.h"
#include "common/base/parse_number.h"
#include "worker/runtime/lane.h"

namespace ddp::runtime {

NodeLinks::NodeLinks(const Meeting& meeting, int world_size, Round round, TimePoint deadline)
    : meeting_(meeting),
      world_size_(world_size),
      round_(round),
      what_(fmt::format("the process group of round {}", round)),
      board_(meeting, world_size, what_, deadline) {}

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
  std::vector<std::string> texts;
  const int teller = worker.local_rank == 0 ? worker.node : -1;
  if (auto failure =
          board_.exchange("/node", teller, worker.nodes, std::to_string(worker.local_size), texts))
    return failure;
  for (const std::string& text : texts) {
    const auto size = parse_whole_number<int>(text, 1);
    if (!size) {
      return Failure{
          Errc::kProtocol, -1,
          fmt::format("node {} published '{}' as its number of workers", sizes.size(), text)};
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
  std::vector<std::string> ids;
  if (auto failure = board_.exchange("/id", worker.rank, worker.world_size, own, ids))
    return failure;
  std::string last;
  Rank first = 0;
  for (Rank rank = 0; rank < worker.world_size; ++rank) {
    std::string& id = ids[static_cast<std::size_t>(rank)];
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

Outcome NodeLinks::connect(const transport::Topology& topology, transport::LaneLinks& links) {
  board_.expect("addr");
  if (meeting_.engine == EngineKind::kUcx && meeting_.guard && meeting_.guard->encrypts()) {
    return Failure{
        Errc::kInvalidArgument, topology.rank(),
        "DDP_LINK asks for UCX, which does not encrypt, but this job has --tls-cert: set "
        "DDP_LINK=tcp on all nodes, or run the job without TLS in a network of its own"};
  }
  std::unique_ptr<Lane> opened;
  if (auto failure = Lane::open(meeting_, topology, round_, board_, opened)) return failure;
  const std::shared_ptr<Lane> lane = std::move(opened);
  links.by_node.resize(static_cast<std::size_t>(topology.nodes()));
  std::vector<int> first;
  std::vector<int> rest;
  for (int node = 0; node < topology.nodes(); ++node) {
    if (topology.lane_peer(node) < 0) continue;
    (topology.begins_linked(node) ? first : rest).push_back(node);
  }
  if (auto failure = lane->look_up(first, board_)) return failure;
  const auto explain = [this](const Error& error) { return board_.explain(error); };
  if (auto failure =
          lane->connect(first, Lane::Control::kWith, board_.deadline(), explain, links.by_node))
    return failure;
  if (rest.empty()) return {};
  links.make_rest = [lane, rest, meeting = meeting_, size = world_size_, what = what_](
                        std::vector<std::unique_ptr<transport::Link>>& by_node, TimePoint limit) {
    const auto on_board = [&](const auto& act) {
      RankBoard board(meeting, size, what, limit);
      board.expect("addr");
      return act(board);
    };
    // All ranks have entered the operation, so every endpoint is there. Nobody waits for another
    // rank while it holds the store: a new group may be made meanwhile.
    auto failure = on_board([&](RankBoard& board) { return lane->look_up(rest, board); });
    if (failure) return failure;
    const auto explain_later = [&](const Error& error) {
      return on_board([&](RankBoard& board) { return board.explain(error); });
    };
    return lane->connect(rest, Lane::Control::kWithout, limit, explain_later, by_node);
  };
  return {};
}

}  // namespace ddp::runtime
