#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/environment.h"
#include "common/base/host_port.h"
#include "common/base/result.h"
#include "common/base/secret.h"
#include "common/config/job_spec.h"
#include "common/config/tls_files.h"
#include "launcher/flags/etcd_settings.h"
#include "launcher/hosts/syntax/host_list.h"
#include "launcher/hosts/syntax/launch_agent.h"
#include "launcher/schedulers/placement.h"
#include "launcher/slurm/step/step.h"

namespace ddp::flags {

struct ProcessCount {
  // kAuto: one worker for each accelerator, or for each CPU if there are none. kDevices: one worker
  // for each accelerator, or one if there are none.
  enum class Kind { kNumber, kAuto, kCpu, kAccelerator, kDevices };
  Kind kind = Kind::kNumber;
  int number = 1;
  std::string accelerator = "gpu";  // Of kAccelerator.

  friend bool operator==(const ProcessCount&, const ProcessCount&) = default;
};

// What the command line and the environment say. Checked as far as possible without looking at the
// machine.
struct Options {
  bool help = false;       // Nothing else is filled.
  bool version = false;    // Nothing else is filled.
  std::string completion;  // A shell's name. If it is set, nothing else is filled.

  // What the agent is told, as far as flags alone say it. plan_job() fills in the rest.
  config::JobSpec spec;

  bool standalone = false;
  ProcessCount nproc;
  // Numbers, as CUDA counts the devices that this process sees, or names (GPU-...). Empty: all.
  std::vector<std::string> devices;
  std::string devices_flag;  // The flag that names them, for messages.

  // If empty, this ddp-run is a node. Otherwise it starts a node on each of these hosts.
  std::vector<hosts::Host> host_list;
  hosts::LaunchAgent launch_agent;
  std::vector<std::pair<std::string, std::string>> exports;  // -x: variables for the hosts.
  std::vector<std::string> node_arguments;  // The command line of ddp-run on each host.

  std::optional<HostPort> endpoint;  // Nothing: this machine alone. With etcd, its first endpoint.
  std::string endpoint_flag;  // The flag the endpoint comes from, for messages: "--rdzv-endpoint".
  bool endpoint_is_master = false;   // Node 0 hosts there, whatever its own addresses are.
  std::optional<EtcdSettings> etcd;  // Nothing: ddp-run's own rendezvous at `endpoint`.
  std::optional<int> replicas;       // How many ddp-runs keep the job's record; odd.
  std::string meeting_file;          // store_type=file: the file of --rdzv-endpoint. Empty: none.
  std::optional<std::string> job_id;
  std::optional<bool> is_host;
  // The rank is the node's number in the SLURM step, in the scheduler's job or in --hosts, not a
  // flag. So the node at the endpoint may have any rank.
  bool node_rank_is_schedulers = false;
  std::string rdzv_token_file;  // Wins over rdzv_token. Empty: none.
  Secret rdzv_token{};          // DDP_RDZV_TOKEN.
  config::TlsFiles tls{};       // All three or none.

  bool is_check = false;      // The program is ddp-run itself, which checks the nodes.
  bool health_check = false;  // Look for what breaks jobs before this node joins.
  std::string check_dir;      // The folder whose disk the checks look at; empty: none.

  std::string log_dir;              // Empty: no files.
  bool log_dir_is_default = false;  // Flags ask for files, but --log-dir is not given.
  std::string event_log;            // console, or json:FILE; empty: none.
  std::string page_file;            // Empty: none.
  std::string trace_file;           // Empty: none.

  bool module = false;
  bool no_python = false;
  bool run_path = false;
  std::vector<std::string> arguments;
  std::string python = "python3";
  std::string search_path = "/bin:/usr/bin";  // PATH, for programs without a slash.

  std::string scheduler;  // Who has started this ddp-run, for people. Empty: not known.
  // Set if a scheduler other than SLURM has started this ddp-run as one of several nodes. Then what
  // no flag sets follows from it.
  std::optional<schedulers::Placement> placement;

  // Set if this process is a task of srun. Then nodes, workers and the rendezvous follow from the
  // step where no flag sets them.
  std::optional<slurm::Step> step;
  // Flags name an endpoint and more nodes than the step has, so the other nodes are in steps of
  // their own. The step then says nothing about the job's nodes and their ranks.
  bool step_is_part = false;
  std::vector<int> step_ports;  // Ports for the step's rendezvous. Only without an endpoint.
  bool requeue = true;
  std::int64_t requeue_before_ms =
      60'000;  // Time before the job's time limit; 0: wait for SLURM's signal.

  std::vector<std::string> warnings;  // Lines to print.

  friend bool operator==(const Options&, const Options&) = default;
};

// Reads argv (without argv[0]). A flag's last occurrence wins over earlier ones, and the command
// line wins over PET_NAME in the environment. The first argument that is not a flag is the program,
// and everything after it belongs to the program. Errors are exit_error: kExitUsage if the line
// cannot be read, kExitInvalidValue if a value is wrong.
Result<Options> parse_flags(const std::vector<std::string>& arguments,
                            const GetEnvironment& environment);

}  // namespace ddp::flags
