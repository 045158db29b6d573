#pragma once

#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "worker/runtime/meeting.h"
#include "worker/runtime/rank_board.h"
#include "worker/runtime/worker_environment.h"
#include "worker/transport/failure.h"
#include "worker/transport/link.h"
#include "worker/transport/topology.h"

namespace ddp::runtime {

// How the world's ranks are spread over nodes. locals: the local ranks on this rank's machine that
// form its node, itself included.
struct Placement {
  std::vector<int> node_sizes;
  std::vector<int> locals;
};

// Exchanges, through the store, what ranks need in order to connect.
class NodeLinks {
 public:
  NodeLinks(const Meeting& meeting, int world_size, Round round, TimePoint deadline);

  // For the world: finds the agents' nodes, cut further where DDP_VIRTUAL_NODE differs. Collective.
  Outcome place(const WorkerEnvironment& worker, Placement& placement);

  // Makes the links of this rank's lane that a round begins with (Topology::begins_linked), and
  // prepares the others. Failures as in Lane. Collective.
  Outcome connect(const transport::Topology& topology, transport::LaneLinks& links);

 private:
  Outcome read_node_sizes(const WorkerEnvironment& worker, std::vector<int>& sizes);
  Outcome place_by_id(const WorkerEnvironment& worker, Placement& placement);

  const Meeting& meeting_;
  const int world_size_;
  const Round round_;
  const std::string what_;  // Is made, for messages.
  RankBoard board_;
};

}  // namespace ddp::runtime
