#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/wire/rendezvous_messages.h"
#include "launcher/rendezvous/job_record.h"

// Texts about the failures of a round, for people. Pure functions; the failures must be in the
// order in which they happened (FailureOrder).
namespace ddp::rendezvous {

// "a, b": the names, at most 16 of them.
std::string some_of(const std::vector<std::string>& names);

// The index of the root cause: the earliest failure that is not secondary, or the first one if all
// are. `failures` must not be empty.
std::size_t root_cause(const std::vector<wire::Failure>& failures);

// One line: "rank 1 on n2 failed: signal 9 (SIGKILL): killed by the kernel: out of memory (...)",
// "node n2 was lost: its connection closed".
std::string describe(const wire::Failure& failure);

// Several lines, as in the report: all that is known about it, with the last lines of the worker's
// standard error.
std::string describe_in_full(const wire::Failure& failure);

// Whether it is the loss of a node, and so no failure of the program.
bool is_node_loss(const wire::Failure& failure);

// Whether a restart cannot help: the program is missing or not executable, or it ended with one of
// our exit codes for wrong input.
bool is_permanent(const wire::Failure& failure);

// The exit status of a job that ends because of this failure; never 0.
int exit_status(const wire::Failure& failure);

struct ReportInput {
  std::string program{};  // For the heading. Empty: the heading has the job's id.
  std::string job_id;
  std::vector<wire::Failure> failures;  // In the order in which they happened, not empty.
  Round round = kNoRound;               // The round that failed.
  int nodes = 0;                        // Number of nodes in that round.
  int world_size = 0;
  int restarts = 0;
  int max_restarts = 0;
  bool retry_would_not_help = false;  // The root cause is permanent.
  std::string late{};                 // Which ranks were late and how long; or empty.
  // What the workers of each node were waiting for, by host. Hosts that reported nothing are left
  // out.
  std::vector<std::pair<std::string, std::vector<std::string>>> operations;
  std::vector<LeftOut> left_out{};  // Nodes that the job does without.
};

// The whole report, in torchrun's format, which tools can read: the root cause in full, one line
// for each other failure, and how many rounds and restarts were used. Ends with a newline.
std::string failure_report(const ReportInput& input);

// The failure as the text of a torchelastic error file (JSON), for a launcher above ddp-run.
std::string error_file(const wire::Failure& failure);

}  // namespace ddp::rendezvous
