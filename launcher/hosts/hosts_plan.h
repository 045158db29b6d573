#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"
#include "launcher/flags/flags.h"
#include "launcher/hosts/node_order.h"
#include "launcher/machine/machine.h"
#include "launcher/plan/job_plan.h"

namespace ddp::hosts {

// The plan of a ddp-run that starts others on --hosts.
struct HostsPlan {
  NodeOrder order;  // For all hosts. set_endpoint() adds --rdzv-endpoint.
  // The rendezvous that runs in this process. job.host is false if it runs elsewhere.
  plan::JobPlan job;
  std::string address;  // The address at which the hosts reach it.
  bool status_line = false;
};

// Errors are exit_error. `program` is ddp-run's path, `folder` the working directory.
Result<HostsPlan> plan_hosts(const flags::Options& options, const machine::Machine& machine,
                             const std::string& program, const std::string& folder);

// Puts the endpoint into the order. Call it once the rendezvous has its port
// (plan.job.spec.coordinator_port).
void set_endpoint(HostsPlan& plan);

// What ends a ddp-run that handles these signals (--signals-to-handle): `wish` if it is one of
// them, since any other may be the checkpoint signal. Its agent ends the workers even at SIGKILL.
int ending_signal(const std::vector<int>& signals, int wish);

// Sets the options of the ddp-run on a host that follow from its place in the order.
void take_place(const NodeOrder& order, const NodePlace& place, flags::Options& options);

// A host's part, as far as it is known before anything runs there.
struct HostPart {
  NodePlace place;
  plan::JobPlan plan;          // The port is 0 where the system will pick it.
  bool workers_known = true;   // False: the host will count them, and plan.spec.nproc is 1.
  std::string counted{};       // What the host will count, for people.
  std::string numa_binding{};  // As in JobSpec. plan.spec has none, since the CPUs are unknown.
};

// For --dry-run: the parts of all hosts, in the order of the places. Contacts no host. Errors are
// those that the hosts would report about their flags.
Result<std::vector<HostPart>> plan_host_parts(const HostsPlan& plan);

// USER@HOST without the user.
std::string host_part(const std::string& name);

// The address at which the hosts reach this machine: the local address of a connection to the first
// host that is not this machine, by whatever name. If that host's name cannot be resolved, or if a
// launch agent other than ssh gives names a meaning of its own, it is this machine's own address.
// It is loopback if all hosts are this machine.
std::string address_for_hosts(const flags::Options& options, const machine::Machine& machine);

}  // namespace ddp::hosts
