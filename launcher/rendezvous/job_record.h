#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/ids.h"
#include "common/wire/rendezvous_messages.h"

namespace ddp::rendezvous {

// One failure of a node, see NodeFailures.
struct NodeFailureRecord {
  NodeId node_id;
  std::string host;
  int node_rank = -1;
  bool shares_its_host = false;
  std::int64_t age_ms = 0;  // How long before the record was made.
  std::string text;
};

// A node that the job does without, and why.
struct LeftOut {
  std::string host;
  std::string reason;
};

// What a job's next coordinator needs to know if the coordinator and all agents are lost. The shell
// may store it: in etcd, or with the other nodes.
struct JobRecord {
  std::string job_id;
  Round next_round = 0;         // The first number that no round has used.
  int restarts = 0;             // Charged so far.
  std::int64_t best_step = -1;  // The largest step that any worker has reported.
  int no_progress = 0;          // Restarts since that step.
  bool finished = false;
  wire::Finish result;                             // Valid if finished.
  std::vector<NodeFailureRecord> node_failures{};  // Of the last hour, oldest first.
  std::vector<LeftOut> left_out{};
};

void to_json(nlohmann::json& json, const JobRecord& record);
// Unknown members are ignored and absent ones get their defaults, so that nodes of different
// versions understand each other. Throws nlohmann::json::exception for anything else.
void from_json(const nlohmann::json& json, JobRecord& record);

}  // namespace ddp::rendezvous
