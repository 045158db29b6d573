#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/store/store.h"
#include "common/wire/flight_ring.h"
#include "worker/transport/data_engine.h"
#include "worker/transport/link_guard.h"

namespace ddp::runtime {

// What ranks of different nodes need in order to find each other.
struct Meeting {
  std::shared_ptr<Store> store;  // Null in a world of one node.
  std::shared_ptr<std::mutex> in_use = std::make_shared<std::mutex>();  // Guards the store.
  std::string prefix;                    // Of the group's keys; unique to the job, round and group.
  std::vector<std::string> addresses;    // Where this rank can be reached.
  EngineKind engine = EngineKind::kTcp;  // What carries the data of the links.
  // What guards the connections between nodes; null: nothing. A group of ddp-run's workers takes it
  // from the memory of the round when it is made.
  std::shared_ptr<const transport::LinkGuard> guard{};
  std::string group = wire::kWorldGroup;  // Its name in reports, the same on all ranks.
  // The group's ranks as ranks of the world, for reports; empty: it is the world.
  std::vector<Rank> world_ranks;
};

}  // namespace ddp::runtime
