#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/job_spec.h"
#include "launcher/flags/flags.h"
#include "launcher/machine/machine.h"

namespace ddp::plan {

// What this ddp-run is going to do.
struct JobPlan {
  config::JobSpec spec;  // coordinator_port is 0 if the system picks the port.
  // Run the rendezvous daemon here, unless one answers at the endpoint already.
  bool host = false;
  bool port_is_chosen = false;  // By the system, once the daemon runs.
  std::string bind_address;     // Numeric; empty: all addresses.
  // The endpoint's own address, if this node reaches the rendezvous that it hosts at another one.
  // That other one is loopback if the job has one node and no token, and the machine's own address
  // if --master-addr is not an address of this machine. Another daemon may answer at the endpoint's
  // own address. Empty otherwise.
  std::string outside_address;
  // Set with --rdzv-backend etcd: the coordinator is elected there and may be on any node. spec's
  // coordinator is not known yet.
  std::optional<flags::EtcdSettings> etcd;
  // How many ddp-runs keep the job's record together, so that any of them can take over the
  // coordination; 1: only the host has it.
  int replicas = 1;
  // The file that says where the rendezvous is; spec's coordinator is not known yet. Empty if spec
  // has it.
  std::string meeting_file{};
  // The ports at which the rendezvous of a SLURM step may be. It takes the first one that is free
  // on the step's first node, so spec's coordinator is not known yet. Empty if spec has it.
  std::vector<int> step_ports;
  // spec's token, sealed, as the rendezvous shows it to the other nodes of a SLURM step. Empty if
  // they have the token by other means.
  std::string sealed_token;
  std::string scheduler{};  // Who has started this node, for people. Empty: not known.
  // Set if this process is a task of srun.
  std::optional<slurm::Step> step;
  bool step_is_part = false;  // Other nodes of the job are in steps of their own.
  bool requeue = false;       // Put a run that is stopped to go on later back into SLURM's queue.
  std::int64_t requeue_before_ms = 0;
  // The workers check the nodes and print what they find, so that there is nothing to report.
  bool is_check = false;
  std::string page_file;   // Where the page goes at the end of the job; empty: nowhere.
  std::string trace_file;  // Where the trace of the whole job goes; empty: nowhere.
  int tasks_fd = -1;       // The agent's listening socket for the node's other tasks; -1: none.
  std::string
      endpoint_flag;  // The flag that names the endpoint, with its value; empty if there is none.
};

// Whether the job's nodes can be told from strangers, by a token or by TLS.
inline bool is_guarded(const config::JobSpec& spec) {
  return !spec.rdzv_token.empty() || spec.tls.any();
}

// The warning for a rendezvous bound to `bind_address` if anybody who reaches it can join;
// otherwise empty.
std::string warning_if_open(const config::JobSpec& spec, const std::string& bind_address);

// What it means if the node that hosts the rendezvous is lost; empty if any other node takes over,
// or if there is no other.
std::string what_its_loss_means(const JobPlan& plan);

// For the person at the terminal: where to look at a job whose port the system has chosen, once it
// is known. Empty if there is nothing to say.
std::string where_to_watch(const JobPlan& plan);

// Whether this task is not the first of its node. The first task then supervises this one's worker.
bool is_follower(const flags::Options& options);

// Makes the plan from the options and the machine's facts. Errors are exit_error with
// kExitInvalidValue.
Result<JobPlan> plan_job(const flags::Options& options, const machine::Machine& machine);

}  // namespace ddp::plan
