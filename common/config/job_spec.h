#pragma once

#include <signal.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/secret.h"
#include "common/config/job_rules.h"
#include "common/config/output_spec.h"
#include "common/config/tls_files.h"

namespace ddp::config {

// One node's part of a job. ddp-run makes it from flags and environment, checks all of it, and
// hands it to ddp-agent (as CBOR on the file descriptor named by --job-fd).
struct JobSpec {
  std::string job_id = "none";  // --rdzv-id; TORCHELASTIC_RUN_ID
  NodeId node_id;               // Random, one per ddp-run; the same for every agent it starts.
  std::string host;             // This node's name, for people and log prefixes.
  std::string local_addr;       // --local-addr; empty: the address the coordinator is reached from.
  int node_rank = -1;           // --node-rank; -1: any.
  bool node_rank_is_wish = false;  // If another node has node_rank, any other will do.

  std::string coordinator_host;  // Where to connect.
  int coordinator_port = 0;
  // Where this node's ddp-run can take over the job (launcher/replicas); 0: it cannot.
  int replica_port = 0;
  // What the health check found against this node; empty: nothing, or there was none.
  std::string unfit{};
  // The token by which nodes and coordinator recognize each other; empty: none. encode() includes
  // it.
  Secret rdzv_token{};
  TlsFiles tls{};  // None: the rendezvous is reached by plain TCP.
  // The name that the rendezvous's certificate must hold; empty: that of any node of the job.
  std::string tls_name{};
  // Processes of other users of this machine are let in, too, and a rendezvous of theirs is joined.
  bool any_user = false;

  JobRules rules;
  // Names of all nodes, from --hosts or SLURM, to tell which nodes are missing. Empty: not known.
  std::vector<std::string> expected_hosts;
  int nproc = 1;  // Workers on this node.
  // srun has started a task for each worker, and the workers run in these tasks.
  bool in_tasks = false;
  // How long to try to reconnect to a lost coordinator.
  std::int64_t coordinator_timeout_ms = 60'000;
  // A worker without a new step for this long counts as hung; 0: never.
  std::int64_t progress_timeout_ms = 0;
  // TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT: a worker that is in state D for this long counts as
  // failed; 0: never.
  std::int64_t uninterruptible_ms = 0;
  bool tells_waiting = true;  // Whether to print here which nodes the job waits for.
  int standby = 0;  // How many standby workers this node starts ahead, to replace others at once.
  // TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT: how long to wait for the other nodes once this one's
  // workers have finished; -1: without limit.
  std::int64_t exit_barrier_ms = -1;
  // Signals to the agent. It ends the workers with each of `signals`, and asks them for a
  // checkpoint at checkpoint_signal (0: at none).
  std::vector<int> signals{SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  int checkpoint_signal = SIGUSR1;
  // TORCHELASTIC_SIGNALS_TO_HANDLE: `signals` as the user wrote them, unknown names included.
  std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";

  std::string program;  // What the user named: a script, a module or a program; for people.
  // argv of a worker; command[0] is looked up in PATH as execvp does.
  std::vector<std::string> command;
  // The Python that runs the workers; empty: none, or unknown.
  std::string python{};
  // TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: rank 0 makes the workers' store.
  bool own_store = false;
  std::string role = "default";  // ROLE_NAME
  bool successor = false;        // The agent takes the place of one that was lost.
  // When the workers must write a checkpoint and then stop, in
  // milliseconds of the monotonic clock; 0: never.
  std::int64_t checkpoint_at_ms = 0;
  // The agent takes signals only from its ddp-run (forwarded_signal.h). Signals from others are
  // copies, because SLURM signals every process of a step.
  bool signals_from_launcher = false;
  int usable_cores = 0;  // CPU cores of this node for its workers; 0: the agent counts them.
  // CUDA_VISIBLE_DEVICES of the workers; empty: what they inherit.
  std::vector<std::string> devices;
  // Each worker gets one of `devices` (without any, the one numbered as its local rank), and
  // LOCAL_RANK is 0 everywhere.
  bool virtual_local_rank = false;
  std::string numa_binding;  // node, socket, exclusive or core-complex; empty: none.
  std::string event_log;     // console, or json:FILE; empty: none.
  std::string log_dir;       // Base folder of the per-rank files; empty: no files.
  // Whether output gets the [host:rank] prefix when there is only one worker.
  bool single_node_prefix = true;
  bool notices = true;  // Whether the agent prints more than failures (LOGLEVEL).
  OutputSpec output;
  bool dry_run = false;  // Print what would be started, and start nothing.
  // With dry_run for a node that is another host: the number of workers of each node of the job, by
  // node rank. The cores of that host are not known. Empty: all nodes are like this one.
  std::vector<int> dry_run_workers{};

  friend bool operator==(const JobSpec&, const JobSpec&) = default;
};

std::string encode(const JobSpec& spec);
Result<JobSpec> decode_job_spec(std::string_view bytes);

// What an agent tells its ddp-run at its end: one object on --result-fd; then it exits with
// exit_code. An agent that ends without it was lost, and ddp-run starts another.
struct AgentResult {
  int exit_code = 0;
  std::string summary;
  std::string report;
  // The numbers that the next agent joins with.
  Round last_round = kNoRound;
  int restarts = 0;
  bool has_checkpoint = false;  // A checkpoint of a worker of this node was written.
  bool at_time_limit = false;   // The workers were stopped at checkpoint_at_ms.
  std::string error{};  // The root cause as an error file of torchelastic (JSON), if there is one.
};

std::string encode(const AgentResult& result);
Result<AgentResult> decode_agent_result(std::string_view bytes);

}  // namespace ddp::config
