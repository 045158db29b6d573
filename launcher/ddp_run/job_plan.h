#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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
  // The endpoint's own address, where this node reaches the rendezvous that it hosts by another
  // one: by the loopback interface, to which it keeps because the job has one node and no token, or
  // by the machine's own address where --master-addr is none of this machine. Another daemon may
  // answer there. Empty otherwise.
  std::string outside_address;
  // The coordinator is elected there, and may be anywhere; spec's coordinator is to be filled in.
  std::optional<EtcdSettings> etcd;
  // The file that says where the rendezvous is; spec's coordinator is to be filled in. Empty: spec
  // says.
  std::string meeting_file{};
  // The ports at which the rendezvous of a SLURM step may be, the first free one of its first node:
  // spec's coordinator is to be filled in. Empty: it is where spec says.
  std::vector<int> step_ports;
  // spec's token as the rendezvous shows it to the other nodes of a SLURM step; empty: they have
  // it.
  std::string sealed_token;
  // The task of srun that this process is.
  std::optional<slurm::Step> step;
  bool step_is_part = false;  // Other nodes of the job are in steps of their own.
  bool requeue = false;  // A run that is stopped to go on later is put back into SLURM's queue.
  std::int64_t requeue_before_ms = 0;
  int tasks_fd = -1;  // A socket that listens for the node's other tasks, for the agent; -1: none.
  std::string
      endpoint_flag;  // The flag that names the endpoint, with its value; empty if there is none.
};

// Whether the job's nodes can be told from strangers.
inline bool is_guarded(const config::JobSpec& spec) {
  return !spec.rdzv_token.empty() || spec.tls.any();
}

// What to say where a rendezvous that is bound to `bind_address` lets in whoever reaches it; empty
// where it does not.
std::string warning_if_open(const config::JobSpec& spec, const std::string& bind_address);

// Whether another task of this node, its first, supervises the worker of this one.
bool is_follower(const Options& options);

// Works the plan out of the options and the machine's facts. Errors are exit_error with
// kExitInvalidValue.
Result<JobPlan> plan_job(const Options& options, const Machine& machine);

}  // namespace ddp::run
