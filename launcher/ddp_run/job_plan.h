#pragma once

#include <optional>
#include <string>

#include "common/base/result.h"
#include "common/config/job_spec.h"
#include "launcher/ddp_run/flags.h"
#include "launcher/ddp_run/machine.h"

namespace ddp::run {

// What this ddp-run is going to do.
struct JobPlan {
  config::JobSpec spec;  // coordinator_port is 0 where the system picks the port.
  // Run the rendezvous daemon here, unless one answers at the endpoint already.
  bool host = false;
  std::string bind_address;  // Numeric; empty: all addresses.
  // The coordinator is elected there, and may be anywhere; spec's coordinator is to be filled in.
  std::optional<EtcdSettings> etcd;
  std::string
      endpoint_flag;  // The flag that names the endpoint, with its value; empty if there is none.
};

// Works the plan out of the options and the machine's facts. Errors are exit_error with
// kExitInvalidValue.
Result<JobPlan> plan_job(const Options& options, const Machine& machine);

}  // namespace ddp::run
