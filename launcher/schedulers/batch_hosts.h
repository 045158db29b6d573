#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/base/environment.h"

namespace ddp::schedulers {

// What a batch script that runs once, on the first host of its job, can read about all of them.
// Pure.
struct BatchHosts {
  std::string scheduler;  // For people: "PBS".
  std::string variable;   // That names the file: "PBS_NODEFILE".
  std::string file;       // One host a line, each as often as it has slots.
  std::string job_id;

  friend bool operator==(const BatchHosts&, const BatchHosts&) = default;
};

// Nothing outside of PBS and LSF, in a task that they have started on each host, in SLURM (which
// can imitate PBS), and in what another ddp-run or mpirun has started.
std::optional<BatchHosts> find_batch_hosts(const GetEnvironment& environment);

// The hosts of such a file, each once and in order, as --hosts takes them: "n1,n2".
std::string hosts_once(std::string_view lines);

}  // namespace ddp::schedulers
