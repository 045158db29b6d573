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

// In the options of the ddp-run on a host, what its place in the order says.
void take_place(const hosts::NodeOrder& order, const hosts::NodePlace& place, Options& options);

// A host's part, as far as it is known before anything runs there.
struct HostPart {
  hosts::NodePlace place;
  JobPlan plan;                // The port is 0 where the system will pick it.
  bool workers_known = true;   // False: the host counts them, and plan.spec.nproc is 1.
  std::string counted{};       // What it counts, for people.
  std::string numa_binding{};  // As in a JobSpec; plan.spec has none, since CPUs are not known.
};

// For --dry-run: all of them, in the order of the places. Asks no host. Errors are those that the
// hosts would have with their flags.
Result<std::vector<HostPart>> plan_host_parts(const HostsPlan& plan);

// USER@HOST without the user.
std::string host_part(const std::string& name);

// What the hosts know this machine by: the address that a connection to the first of them that is
// not this machine leaves from; where its name cannot be resolved, or another launch agent than ssh
// gives names a meaning of its own, this machine's own. Loopback where all are this machine.
std::string address_for_hosts(const Options& options, const Machine& machine);

}  // namespace ddp::run
