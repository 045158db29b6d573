#pragma once

#include <signal.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/base/secret.h"
#include "common/config/job_rules.h"
#include "common/config/output_spec.h"
#include "common/config/tls_files.h"
#include "launcher/ddp_run/etcd_settings.h"
#include "launcher/hosts/host_list.h"
#include "launcher/hosts/launch_agent.h"
#include "launcher/slurm/step.h"

namespace ddp::run {

struct Endpoint {
  std::string host;  // Name or numeric address, without brackets.
  int port = 0;      // 0: the system picks one; only for one node.

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

struct ProcessCount {
  // kAuto: one for each accelerator, or CPU; kDevices: for each accelerator, or 1.
  enum class Kind { kNumber, kAuto, kCpu, kAccelerator, kDevices };
  Kind kind = Kind::kNumber;
  int number = 1;
  std::vector<std::string> devices{};  // Of gpu:LIST.
  std::string accelerator = "gpu";     // Of kAccelerator.

  friend bool operator==(const ProcessCount&, const ProcessCount&) = default;
};

// The command line and the environment, read and checked as far as that is possible without looking
// at the machine.
struct Options {
  bool help = false;       // Nothing else is filled.
  bool version = false;    // Nothing else is filled.
  std::string completion;  // A shell's name; if there is one, nothing else is filled.
  bool dry_run = false;

  bool standalone = false;
  config::JobRules rules;
  ProcessCount nproc;
  // Numbers as CUDA counts the devices that this process sees, or names (GPU-...); empty: all.
  std::vector<std::string> devices;
  std::string devices_flag;  // The flag they come from, for messages.
  bool virtual_local_rank = false;
  std::string numa_binding;  // node, socket, exclusive or core-complex; empty: none.

  // Empty: this ddp-run is one node itself. Else it starts one on each of them.
  std::vector<hosts::Host> host_list;
  hosts::LaunchAgent launch_agent;
  std::vector<std::pair<std::string, std::string>> exports;  // -x: what they get of environment.
  std::vector<std::string> node_arguments;  // The flags and the program once more, for each host.

  std::optional<Endpoint> endpoint;  // Nothing: this machine alone. With etcd, its first one.
  std::string endpoint_flag;  // The flag the endpoint comes from, for messages: "--rdzv-endpoint".
  bool endpoint_is_master = false;   // Node 0 hosts at it, whatever its own addresses are.
  std::optional<EtcdSettings> etcd;  // Nothing: ddp-run's own rendezvous at `endpoint`.
  std::string meeting_file;  // store_type=file: what --rdzv-endpoint names then; empty: none.
  std::optional<std::string> job_id;
  std::optional<bool> is_host;
  int node_rank = -1;
  bool node_rank_is_wish =
      false;  // The backend gives ranks; where another node has it, any will do.
  bool node_rank_is_slurms = false;  // Nobody wrote it: it is the node's number in the SLURM step.
  std::string local_addr;
  std::string rdzv_token_file;  // Wins over rdzv_token. Empty: none.
  Secret rdzv_token{};          // DDP_RDZV_TOKEN.
  config::TlsFiles tls{};       // All three or none.
  std::string interface;  // The network interface whose address is the node's; empty: none named.

  std::int64_t coordinator_timeout_ms = 60'000;
  std::int64_t progress_timeout_ms = 0;
  std::int64_t uninterruptible_ms = 0;  // JobSpec's.
  int standby = 0;
  std::int64_t exit_barrier_ms = -1;  // -1: as long as it takes.
  // Each of them ends the workers.
  std::vector<int> signals{SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";  // The same as it was written.
  int checkpoint_signal = SIGUSR1;                                  // 0: none.

  std::string log_dir;              // Empty: no files.
  bool log_dir_is_default = false;  // Nobody named it; files were asked for.
  config::OutputSpec output;        // status_line: unless it was declined.
  std::string role = "default";
  std::string event_log;  // console, or json:FILE; empty: none.

  bool module = false;
  bool no_python = false;
  bool run_path = false;
  std::string program;
  std::vector<std::string> arguments;
  std::string python = "python3";
  bool own_store = false;                     // TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
  std::string search_path = "/bin:/usr/bin";  // PATH: where programs without a slash are.

  // This process is a task of srun. What no flag says about nodes, workers and where they meet
  // follows from it.
  std::optional<slurm::Step> step;
  // Flags name an endpoint and more nodes than the step has, so the others are in steps of their
  // own. The step says nothing about the job's nodes and their ranks then.
  bool step_is_part = false;
  std::vector<int> step_ports;  // Where its rendezvous may listen; only without an endpoint.
  bool requeue = true;
  std::int64_t requeue_before_ms =
      60'000;  // The end of the job's time; 0: wait for SLURM's signal.

  std::vector<std::string> warnings;  // A line each, to be printed.

  friend bool operator==(const Options&, const Options&) = default;
};

// getenv, or what a test puts in its place.
using GetEnvironment = std::function<const char*(const char* name)>;

// Reads argv (without argv[0]). A flag's last occurrence wins over the earlier ones, and those over
// PET_NAME in the environment, and that over the file that --config names, which is read here.
// Everything after the first argument that is not a flag belongs to
// the program. Errors are exit_error: kExitUsage where the line cannot be read, kExitInvalidValue
// where a value is wrong.
Result<Options> parse_flags(const std::vector<std::string>& arguments,
                            const GetEnvironment& environment);

}  // namespace ddp::run
