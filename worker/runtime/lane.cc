#include "worker/runtime/lane.h"

#include <atomic>
#include <future>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "common/wait/wait_interrupt.h"

namespace ddp::runtime {
namespace {

using Connected = Result<std::vector<transport::LinkConnections>>;

// Connects to the higher nodes while the caller accepts the lower ones. If a rank accepted nobody
// before it has connected, each would wait for its neighbour: a chain as long as the world. The
// destructor gives up.
class ConnectThread {
 public:
  template <typename Connect>
  explicit ConnectThread(Connect connect) {
    connected_ = std::async(std::launch::async, [this, connect] {
      const WaitInterrupt interrupt([this] { return gives_up_.load(); });
      return connect();
    });
  }
  ~ConnectThread() { gives_up_ = true; }
  ConnectThread(const ConnectThread&) = delete;
  ConnectThread& operator=(const ConnectThread&) = delete;

  // Once. The caller's WaitInterrupt ends it, too.
  Connected wait() {
    const TimePoint since = Clock::now();
    while (connected_.wait_for(WaitInterrupt::until_look(since)) != std::future_status::ready) {
      if (WaitInterrupt::raised()) gives_up_ = true;
    }
    return connected_.get();
  }

 private:
  std::atomic<bool> gives_up_ = false;
  std::future<Connected> connected_;  // Its destructor waits for the thread.
};

}  // namespace

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
  std::vector<int> higher;
  std::vector<std::string> keys;
  for (const int node : nodes) {
    if (node < topology_.node()) continue;
    higher.push_back(node);
    keys.push_back(fmt::format("/addr/{}", topology_.lane_peer(node)));
  }
  std::vector<std::string> found;
  if (auto failure = board.read(keys, found)) return failure;
  for (std::size_t i = 0; i < higher.size(); ++i) endpoints_[higher[i]] = std::move(found[i]);
  return {};
}

Outcome Lane::connect(const std::vector<int>& nodes, Control control, TimePoint deadline,
                      const Explain& explain,
                      std::vector<std::unique_ptr<transport::Link>>& by_node) {
  std::vector<int> higher;
  std::vector<int> lower;
  std::vector<transport::LinkIdentity> expected;
  for (const int node : nodes) {
    (node > topology_.node() ? higher : lower).push_back(node);
    if (node < topology_.node()) expected.push_back(identity(node, control));
  }
  const auto connect = [&] { return connect_to(higher, control, deadline); };
  std::optional<ConnectThread> connecting;
  if (!higher.empty() && !lower.empty()) connecting.emplace(connect);
  if (!lower.empty()) {
    auto accepted = listener_->accept(expected, deadline, engine_->kind());
    if (!accepted) return explain(accepted.error());
    add_links(lower, std::move(*accepted), by_node);
  }
  if (!higher.empty()) {
    Connected connected = connecting ? connecting->wait() : connect();
    if (!connected) return explain(connected.error());
    add_links(higher, std::move(*connected), by_node);
  }
  return establish(nodes, deadline, by_node);
}

Connected Lane::connect_to(const std::vector<int>& nodes, Control control,
                           TimePoint deadline) const {
  std::vector<transport::LinkConnections> all;
  for (const int node : nodes) {
    auto connected = transport::connect_link(endpoints_.at(node), identity(node, control), deadline,
                                             engine_->kind(), guard_.get());
    if (!connected) return connected.error();
    all.push_back(std::move(*connected));
  }
  return all;
}

void Lane::add_links(const std::vector<int>& nodes,
                     std::vector<transport::LinkConnections> connections,
                     std::vector<std::unique_ptr<transport::Link>>& by_node) {
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    by_node[static_cast<std::size_t>(nodes[i])] = std::make_unique<transport::Link>(
        engine_->open_stream(std::move(connections[i].data)), std::move(connections[i].control),
        topology_.lane_peer(nodes[i]), nodes[i]);
  }
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
