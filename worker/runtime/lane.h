#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "worker/runtime/meeting.h"
#include "worker/runtime/rank_board.h"
#include "worker/transport/data_engine.h"
#include "worker/transport/failure.h"
#include "worker/transport/link.h"
#include "worker/transport/tcp.h"
#include "worker/transport/topology.h"

namespace ddp::runtime {

// This rank's end of the links of its lane. Every rank puts its endpoint into the store under
// "<prefix>/addr/<rank>"; of two ranks, the one on the lower node connects. One thread at a time.
class Lane {
 public:
  // Publishes this rank's endpoint. Needs `meeting` and `board` during the call only.
  static Outcome open(const Meeting& meeting, const transport::Topology& topology, Round round,
                      RankBoard& board, std::unique_ptr<Lane>& lane);

  // Reads where those of these nodes listen to which this rank is to connect.
  Outcome look_up(const std::vector<int>& nodes, RankBoard& board);

  // Whether a link is to have a control connection.
  enum class Control { kWith, kWithout };
  // Makes the links to these nodes, in ascending order, after look_up(). kMismatch names the ranks
  // that chose another engine; other errors go through `explain`. Collective: the ranks on those
  // nodes call it, too. Does not use the store.
  using Explain = std::function<Failure(const Error&)>;
  Outcome connect(const std::vector<int>& nodes, Control control, TimePoint deadline,
                  const Explain& explain, std::vector<std::unique_ptr<transport::Link>>& by_node);

 private:
  Lane(std::unique_ptr<transport::DataEngine> engine,
       std::unique_ptr<transport::TcpListener> listener,
       std::shared_ptr<const transport::LinkGuard> guard, transport::Topology topology, Round round)
      : engine_(std::move(engine)),
        listener_(std::move(listener)),
        guard_(std::move(guard)),
        topology_(std::move(topology)),
        round_(round) {}

  transport::LinkIdentity identity(int node, Control control) const;
  // Any thread, as long as no other one changes this.
  Result<std::vector<transport::LinkConnections>> connect_to(const std::vector<int>& nodes,
                                                             Control control,
                                                             TimePoint deadline) const;
  // Element i of `connections` belongs to nodes[i].
  void add_links(const std::vector<int>& nodes, std::vector<transport::LinkConnections> connections,
                 std::vector<std::unique_ptr<transport::Link>>& by_node);
  Outcome establish(const std::vector<int>& nodes, TimePoint deadline,
                    const std::vector<std::unique_ptr<transport::Link>>& by_node);

  std::unique_ptr<transport::DataEngine> engine_;
  std::unique_ptr<transport::TcpListener> listener_;
  std::shared_ptr<const transport::LinkGuard> guard_;
  const transport::Topology topology_;
  const Round round_;
  std::map<int, std::string> endpoints_;  // Of higher nodes, as far as they are known.
};

}  // namespace ddp::runtime
