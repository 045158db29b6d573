#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/wire/rendezvous_messages.h"

// What people read about the failures of a round. Pure functions: failures in the order in which
// they happened (FailureOrder) in, text out.
namespace ddp::rendezvous {

// "1 node", "2 nodes".
std::string counted(int count, std::string_view noun);

// Index of the failure that the others follow from: the earliest that is not secondary, else the
// first. `failures` is not empty.
std::size_t root_cause(const std::vector<wire::Failure>& failures);

// One line: "rank 1 on n2 failed: signal 9 (SIGKILL): killed by the kernel: out of memory (...)",
// "node n2 was lost: its connection closed".
std::string describe(const wire::Failure& failure);

// Whether starting again could not help: the program is missing or not executable, or it ended with
// one of our exit codes that say that its input is at fault.
bool is_permanent(const wire::Failure& failure);

// Status that a job which ends by this failure exits with; never 0.
int exit_status(const wire::Failure& failure);

struct ReportInput {
  std::string program{};  // For the heading; empty: the job's id stands there.
  std::string job_id;
  std::vector<wire::Failure> failures;  // In the order in which they happened, not empty.
  Round round = kNoRound;               // The round that failed.
  int nodes = 0;                        // Its members.
  int world_size = 0;
  int restarts = 0;
  int max_restarts = 0;
  bool retry_would_not_help = false;  // The root cause is permanent.
  // What the workers of each node were waiting for, by host; those that said nothing are left out.
  std::vector<std::pair<std::string, std::vector<std::string>>> operations;
};

// The whole report, in the form that tools know from torchrun: the root cause in full, one line for
// each other failure, and how many rounds and restarts were used. Ends with a newline.
std::string failure_report(const ReportInput& input);

// The failure as an error file of torchelastic (JSON), for a launcher above ddp-run to read.
std::string error_file(const wire::Failure& failure);

}  // namespace ddp::rendezvous
