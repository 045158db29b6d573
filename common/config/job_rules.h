#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace ddp::config {

// The rules of a job. They are the same on all its nodes: the coordinator refuses a node that comes
// with others (difference()). Times are in milliseconds. Each member names its flag of ddp-run; its
// value here is the flag's default. --help repeats it, and a test compares the two.
struct JobRules {
  int min_nodes = 1;     // --nnodes: a round has at least so many nodes,
  int max_nodes = 1;     // and at most so many.
  int spares = -1;       // --spares: how many may wait beyond that; -1: any number.
  int max_restarts = 0;  // --max-restarts: of the whole job.
  // --restart-on-start-failure: also where no worker has reported progress yet.
  bool restart_on_start_failure = false;
  int max_no_progress = 3;  // --max-no-progress: restarts without a new step; 0: no limit.
  std::int64_t join_timeout_ms = 600'000;  // --join-timeout: until min_nodes are there.
  std::int64_t last_call_ms = 30'000;      // --last-call: for more nodes, once they are.
  std::int64_t stop_timeout_ms = 30'000;   // --shutdown-timeout: from SIGTERM to SIGKILL.
  // --scale-up-timeout: how long workers have to commit before a new node comes in.
  std::int64_t scale_up_ms = 60'000;

  friend bool operator==(const JobRules&, const JobRules&) = default;
};

void to_json(nlohmann::json& json, const JobRules& rules);
void from_json(const nlohmann::json& json, JobRules& rules);  // What is absent has its default.

// The flag --max-restarts and --max-no-progress take at most this.
inline constexpr int kMaxRestartsLimit = 1'000'000;

// Why nobody can mean these rules, which came over a network; empty if somebody can.
std::string out_of_range(const JobRules& rules);

// The first rule that differs, with its flag and both values and where they are, for example
// "--max-restarts is 5 on node2 and 3 on node1"; empty if none does.
std::string difference(const JobRules& here, const std::string& host, const JobRules& there,
                       const std::string& other_host);

}  // namespace ddp::config
