#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"
#include "launcher/ddp_run/flags.h"
#include "launcher/ddp_run/job_plan.h"
#include "launcher/ddp_run/machine.h"
#include "launcher/hosts/node_order.h"

namespace ddp::run {

// What a ddp-run does that starts others on --hosts.
struct HostsPlan {
  hosts::NodeOrder order;  // For all of them. Its --rdzv-endpoint is put in by set_endpoint().
  // The rendezvous that runs in this process; job.host is false where it runs elsewhere.
  JobPlan job;
  std::string address;  // Of it, as the hosts reach it.
  bool status_line = false;
};

// Errors are exit_error. `program` is ddp-run's path, `folder` the working directory.
Result<HostsPlan> plan_hosts(const Options& options, const Machine& machine,
                             const std::string& program, const std::string& folder);

// Once the rendezvous has its port (plan.job.spec.coordinator_port).
void set_endpoint(HostsPlan& plan);

// A line for each host that would be started, for --dry-run.
std::vector<std::string> launch_lines(const HostsPlan& plan, const Options& options);

// What the hosts know this machine by: the address that a connection to the first of them that is
// not this machine leaves from; where its name cannot be resolved, or another launch agent than ssh
// gives names a meaning of its own, this machine's own. Loopback where all are this machine.
std::string address_for_hosts(const Options& options, const Machine& machine);

}  // namespace ddp::run
