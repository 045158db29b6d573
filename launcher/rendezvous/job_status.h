#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/wire/member_list.h"
#include "launcher/rendezvous/job_record.h"

// What the daemon tells people and tools about a job. GET /status, GET /metrics and `ddp-run
// status` show these facts.
namespace ddp::rendezvous {

struct NodeStatus {
  NodeId node_id;
  std::string host;
  std::string address;
  int replica_port = 0;  // Where its ddp-run can take over the job; 0: it cannot.
  // in_round; succeeded (its workers have succeeded); stopping (has not ended the round yet);
  // waiting (for a round to begin); spare; ending (still stops a round that is over); awaited, lost
  // (members that are not connected); finished (of a job that is over).
  std::string state;
  int nproc = 0;
  std::string role{wire::kDefaultRole};  // Its workers' role (--role).
  int group_rank = -1;                   // In the current round; -1: none.
  int first_rank = -1;                   // Its workers' ranks are consecutive from here; -1: none.
  std::int64_t step = -1;
  // As its first worker reports them; NaN if not known.
  double loss = std::numeric_limits<double>::quiet_NaN();
  std::string loss_is{};  // "NaN", "inf" or "-inf" if the loss is known not to be finite.
  double samples_per_second = std::numeric_limits<double>::quiet_NaN();
  double steps_per_second = std::numeric_limits<double>::quiet_NaN();
  std::int64_t total_steps = 0;  // Of the whole training; 0: unknown.
  // Until the last of them, at that speed.
  double eta_seconds = std::numeric_limits<double>::quiet_NaN();
  Duration silent{0};  // Time since its last message; 0 if it is not connected.
  // What its workers have waited for, for a second or longer, in sentences.
  std::vector<std::string> waits{};

  bool connected() const { return state != "lost" && state != "awaited"; }
};

struct FailureStatus {
  Round round = kNoRound;
  std::string text;  // One line: "rank 1 on n2 failed: signal 9 (SIGKILL)".
  std::string host;
  int rank = -1;         // -1: not a single worker's failure.
  int exit_code = 0;     // 0 if a signal ended it.
  int signal = 0;        // 0 if it exited.
  std::string cause;     // Empty if nothing is known.
  std::string log_path;  // Empty without log files.
};

// A rank that is late: it computes longer for a step than the others, which wait for it.
struct LateStatus {
  int rank = -1;
  std::string host;
  double computes_ms = 0;  // For a step.
  double others_ms = 0;    // The median of the others.
  Duration since{0};       // How long it has been late.
};

struct JobStatus {
  std::string job_id;
  std::string program;
  std::string state;  // waiting, running, recovering, stopping, finished.
  Round round = kNoRound;
  int world_size = 0;  // 0 while no round runs.
  int min_nodes = 1;
  int max_nodes = 1;
  int restarts = 0;
  int max_restarts = 0;
  std::uint64_t failures = 0;     // Reported so far, in all rounds that this daemon has seen.
  std::int64_t best_step = -1;    // The largest step that was ever reported.
  std::vector<NodeStatus> nodes;  // Connected ones and lost members; members first, by their rank.
  // The root cause of the last round that failed; nothing if none has.
  std::optional<FailureStatus> first_failure;
  std::vector<LateStatus> late;   // By rank.
  std::vector<LeftOut> left_out;  // Nodes that the job does without, and why.
  std::string waiting_for;        // What the job waits for, as a text; or empty.
  std::optional<int> exit_code;   // Of a finished job.
  std::string summary;            // Of a finished job.
  Duration since_end{0};          // Of a finished job.
};

// An object with the fields of the struct. Unknown values are left out.
nlohmann::json to_json(const JobStatus& status);

}  // namespace ddp::rendezvous
