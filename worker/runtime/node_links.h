#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/store/store.h"
#include "worker/runtime/worker_environment.h"
#include "worker/transport/data_engine.h"
#include "worker/transport/failure.h"
#include "worker/transport/link.h"
#include "worker/transport/topology.h"

namespace ddp::runtime {

// What ranks of different nodes need in order to find each other.
struct Meeting {
  std::shared_ptr<Store> store;  // Null in a world of one node.
  std::shared_ptr<std::mutex> in_use = std::make_shared<std::mutex>();  // Guards the store.
  std::string prefix;                    // Of the group's keys; unique to the job, round and group.
  std::vector<std::string> addresses;    // Where this rank can be reached.
  EngineKind engine = EngineKind::kTcp;  // What carries the data of the links.
  std::string group = "world";           // Its name in reports, the same on all ranks.
  // The group's ranks as ranks of the world, for reports; empty: it is the world.
  std::vector<Rank> world_ranks;
};

// How the world's ranks are spread over nodes. locals: the local ranks on this rank's machine that
// form its node, itself included.
struct Placement {
  std::vector<int> node_sizes;
  std::vector<int> locals;
};

// Exchanges, through the store, what ranks need in order to connect.
class NodeLinks {
 public:
  NodeLinks(const Meeting& meeting, Round round, TimePoint deadline)
      : lock_(*meeting.in_use),
        store_(*meeting.store),
        meeting_(meeting),
        round_(round),
        deadline_(deadline) {}

  // For the world: finds the agents' nodes, cut further where DDP_VIRTUAL_NODE differs. Collective.
  Outcome place(const WorkerEnvironment& worker, Placement& placement);

  // Makes the links of this rank's lane, by node. Every rank puts its endpoint into the store under
  // "<prefix>/addr/<rank>"; the rank on the lower node connects. kTimeout names the ranks that are
  // missing, kMismatch those that chose another engine. Collective.
  Outcome connect(const transport::Topology& topology,
                  std::vector<std::unique_ptr<transport::Link>>& links);

 private:
  Outcome publish(const std::string& key, const std::string& value);
  Outcome read(const std::string& key, std::string& value);
  Outcome connect_by(transport::DataEngine& engine, const transport::Topology& topology,
                     std::vector<std::unique_ptr<transport::Link>>& links);
  Outcome establish(const transport::Topology& topology,
                    std::vector<std::unique_ptr<transport::Link>>& links);
  Outcome read_node_sizes(const WorkerEnvironment& worker, std::vector<int>& sizes);
  Outcome place_by_id(const WorkerEnvironment& worker, Placement& placement);
  Failure missing(const std::string& reason);
  Failure explain(const Error& error);

  std::unique_lock<std::mutex> lock_;
  Store& store_;
  const Meeting& meeting_;
  Round round_;
  TimePoint deadline_;
  // For messages:
  int world_size_ = 0;
  const char* presence_ = "addr";  // The key that every rank sets first.
};

}  // namespace ddp::runtime
