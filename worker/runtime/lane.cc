#include "worker/runtime/lane.h"

#include <utility>

#include <fmt/format.h>

#include "common/base/errc.h"

namespace ddp::runtime {

Outcome Lane::open(const Meeting& meeting, const transport::Topology& topology, Round round,
                   RankBoard& board, std::unique_ptr<Lane>& lane) {
  const auto failure_of = [&](const Error& error) {
    return Failure{error.code, topology.rank(), error.message};
  };
  auto engine = transport::make_data_engine(meeting.engine);
  if (!engine) return failure_of(engine.error());
  auto listener = transport::TcpListener::open(meeting.guard);
  if (!listener) return failure_of(listener.error());
  const std::string endpoint = (*listener)->endpoint(meeting.addresses);
  lane.reset(new Lane(std::move(*engine), std::move(*listener), meeting.guard, topology, round));
  return board.publish(fmt::format("/addr/{}", topology.rank()), endpoint);
}

transport::LinkIdentity Lane::identity(int node, Control control) const {
  transport::LinkIdentity identity;
  identity.round = round_;
  identity.world_size = topology_.world_size();
  identity.has_control = control == Control::kWith;
  const bool connects = topology_.node() < node;
  identity.connecting = connects ? topology_.rank() : topology_.lane_peer(node);
  identity.connecting_node = connects ? topology_.node() : node;
  identity.listening = connects ? topology_.lane_peer(node) : topology_.rank();
  identity.listening_node = connects ? node : topology_.node();
  return identity;
}

Outcome Lane::look_up(const std::vector<int>& nodes, RankBoard& board) {
  for (const int node : nodes) {
    if (node < topology_.node()) continue;
    if (auto failure =
            board.read(fmt::format("/addr/{}", topology_.lane_peer(node)), endpoints_[node]))
      return failure;
  }
  return {};
}

// Connects to higher nodes first: the last node has nobody to connect to, so it accepts at once,
// and then the others do, in turn.
Outcome Lane::connect(const std::vector<int>& nodes, Control control, TimePoint deadline,
                      const Explain& explain,
                      std::vector<std::unique_ptr<transport::Link>>& by_node) {
  std::vector<int> lower;
  std::vector<transport::LinkIdentity> expected;
  for (const int node : nodes) {
    if (node < topology_.node()) {
      lower.push_back(node);
      expected.push_back(identity(node, control));
      continue;
    }
    auto link = transport::connect_link(endpoints_[node], identity(node, control), deadline,
                                        engine_.get(), guard_.get());
    if (!link) return explain(link.error());
    by_node[static_cast<std::size_t>(node)] = std::move(*link);
  }
  if (!lower.empty()) {
    auto accepted = listener_->accept(expected, deadline, engine_.get());
    if (!accepted) return explain(accepted.error());
    for (std::size_t i = 0; i < lower.size(); ++i)
      by_node[static_cast<std::size_t>(lower[i])] = std::move((*accepted)[i]);
  }
  return establish(nodes, deadline, by_node);
}

// Every rank has all these connections by now, and all ranks go through their links in the same
// order. So the smallest pair of nodes that is not done never waits for another pair.
Outcome Lane::establish(const std::vector<int>& nodes, TimePoint deadline,
                        const std::vector<std::unique_ptr<transport::Link>>& by_node) {
  for (const int node : nodes) {
    transport::Link& link = *by_node[static_cast<std::size_t>(node)];
    const auto ready = link.establish(deadline);
    if (ready) continue;
    return Failure{
        ready.error().code, link.peer(),
        fmt::format("rank {} cannot exchange data with rank {} on node {}: {}", topology_.rank(),
                    link.peer(), link.peer_node(), ready.error().message)};
  }
  return {};
}

}  // namespace ddp::runtime
