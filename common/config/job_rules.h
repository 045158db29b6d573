#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace ddp::config {

// The rules of a job. They are the same on all its nodes: the coordinator refuses a node with
// different rules (see difference()). Times are in milliseconds. Each comment names the flag of
// ddp-run; the value here is the flag's default. --help repeats it, and a test compares the two.
struct JobRules {
  int min_nodes = 1;     // --nnodes: a round has at least this many nodes.
  int max_nodes = 1;     // --nnodes: a round has at most this many nodes.
  int max_restarts = 0;  // --max-restarts: restarts of the whole job.
  // --restart-on-start-failure: restart also if no worker has reported progress yet.
  bool restart_on_start_failure = false;
  int max_no_progress = 3;  // --max-no-progress: restarts without a new step; 0: no limit.
  // --max-node-failures: a node that failed so often in an hour is left out; 0: no limit.
  int max_node_failures = 3;
  std::int64_t join_timeout_ms = 600'000;  // --join-timeout: how long to wait for min_nodes nodes.
  std::int64_t last_call_ms = 30'000;      // --last-call: how long to wait then for more nodes.
  std::int64_t stop_timeout_ms = 30'000;   // --shutdown-timeout: time from SIGTERM to SIGKILL.
  // --scale-up-timeout: how long workers have to commit before a new node comes in.
  std::int64_t scale_up_ms = 60'000;
  // --lease: how long a node may be silent before it counts as lost.
  std::int64_t lease_ms = 5'000;
  // --exclude-stragglers: a spare replaces a node with a rank that computes so many times as long
  // as the others; 0: never.
  double exclude_stragglers = 0;

  friend bool operator==(const JobRules&, const JobRules&) = default;
};

void to_json(nlohmann::json& json, const JobRules& rules);
void from_json(const nlohmann::json& json, JobRules& rules);  // An absent member gets its default.

// The largest number of nodes.
inline constexpr int kNodesLimit = 1'000'000;
// The values of --lease. A shorter one would take every busy machine for a lost one.
inline constexpr std::int64_t kLeastLeaseMs = 500;
inline constexpr std::int64_t kLongestLeaseMs = 3'600'000;
// The values of --exclude-stragglers. Less than the least does not count as late.
inline constexpr double kLeastRatio = 1.2;
inline constexpr double kLargestRatio = 100;

// The largest value of --max-restarts and --max-no-progress.
inline constexpr int kMaxRestartsLimit = 1'000'000;

// For rules that came over a network: which value is out of range; empty if none is.
std::string out_of_range(const JobRules& rules);

// The first rule that differs, with its flag, both values and both hosts, for example
// "--max-restarts is 5 on node2 and 3 on node1". Empty if no rule differs.
std::string difference(const JobRules& here, const std::string& host, const JobRules& there,
                       const std::string& other_host);

}  // namespace ddp::config
