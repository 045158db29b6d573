#include "launcher/flags/flag_table.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/nearest.h"

namespace ddp::flags {
namespace {

constexpr std::string_view kSize = "Size of the job";
constexpr std::string_view kHosts = "On several machines, from one command";
constexpr std::string_view kRendezvous = "Where the nodes meet";
constexpr std::string_view kProgram = "The program";
constexpr std::string_view kFailure = "Failures and time limits";
constexpr std::string_view kSlurm = "Under SLURM (srun ddp-run PROGRAM needs no flags)";
constexpr std::string_view kOutput = "Output";
constexpr std::string_view kCommand = "ddp-run itself";
constexpr std::string_view kAccepted = "Accepted so that torchrun's command lines work";

constexpr auto kFlags = std::to_array<Flag>({
    {kSize, "standalone", 0, "",
     "a job of one node: the system chooses the port of the rendezvous. Implied without "
     "--rdzv-endpoint and --master-addr",
     "ddp-run --standalone --nproc-per-node 2 train.py"},
    {kSize, "nnodes", 0, "N|MIN:MAX",
     "number of nodes, or a range: the job starts with MIN and takes in up to MAX "
     "(default 1)",
     "--nnodes 2:4"},
    {kSize, "nproc-per-node", 0, "N|auto|cpu|gpu|xpu|hpu|npu",
     "workers on this node: a number, or what to count. gpu: CUDA devices; xpu: Intel GPUs; hpu: "
     "Gaudi; npu: Ascend NPUs; cpu: "
     "usable cores; auto: accelerators, or usable cores if there are none (default 1)",
     "--nproc-per-node gpu"},
    {kSize, "devices", 0, "N,...",
     "CUDA devices for the workers of this node: numbers as CUDA counts the devices that ddp-run "
     "sees, or names (GPU-...). Sets the workers' CUDA_VISIBLE_DEVICES. One worker for each, "
     "unless --nproc-per-node says otherwise",
     "--devices 2,4,7", true},
    {kSize, "virtual-local-rank", 0, "",
     "show each worker one device only, as its number 0; LOCAL_RANK is 0 in every worker",
     "ddp-run --devices 2,4 --virtual-local-rank train.py"},
    {kSize, "numa-binding", 0, "node|socket|exclusive|core-complex",
     "bind each worker to CPUs near its device (by local rank if it has none). node: all cores of "
     "its NUMA node; socket: all cores of that node's socket; exclusive: a share of the node's "
     "cores that no other worker has; core-complex: cores that share a cache",
     "--numa-binding exclusive"},

    {kHosts, "hosts", 0, "HOST[:SLOTS],...",
     "start the job on these machines by ssh, from here. SLOTS: workers on that machine (default "
     "--nproc-per-node). --nnodes defaults to the number of machines. ddp-run's path and the "
     "working directory must be the same there as here. Ctrl-C here ends the whole job. The "
     "rendezvous runs here, at a port that the system chooses",
     "ddp-run --hosts node0,node1:4 train.py", true},
    {kHosts, "hostfile", 0, "FILE",
     "like --hosts, from a file with one host per line: HOST, HOST:SLOTS or HOST slots=N; # begins "
     "a comment",
     "--hostfile hosts.txt", true},
    {kHosts, "launch-agent", 0, "COMMAND",
     "command that starts a program on a host, instead of ssh. {host} in it stands for the host's "
     "name; without {host}, the name is appended. The command must pass standard input and output "
     "on",
     "--launch-agent \"kubectl exec -i {host} --\"", true},
    {kHosts, "export", 'x', "NAME[=VALUE]",
     "environment variable for the workers on the hosts, with its value here unless VALUE is "
     "given; ssh passes none on by itself. May be repeated",
     "-x LD_LIBRARY_PATH -x NCCL_DEBUG=INFO", true, true},

    {kRendezvous, "rdzv-endpoint", 0, "HOST[:PORT]",
     "address of the rendezvous daemon. The ddp-run whose machine has this address runs the "
     "daemon, unless one answers there already (default port 29400). With --node-rank 0 it runs "
     "it whatever its own addresses are",
     "--rdzv-endpoint node0:29400"},
    {kRendezvous, "rdzv-id", 0, "ID", "name of the job, the same on all nodes (default: none)",
     "--rdzv-id mnist-7"},
    {kRendezvous, "rdzv-backend", 0, "c10d|static|etcd",
     "c10d and static both mean ddp-run's own rendezvous (default). etcd: --rdzv-endpoint "
     "HOST:PORT,... names an etcd cluster (default port 2379), which keeps the job's state. Any "
     "node may be the coordinator, and another one takes over if it is lost. Needs --rdzv-id",
     "--rdzv-backend etcd --rdzv-endpoint etcd0,etcd1,etcd2 --rdzv-id mnist-7"},
    {kRendezvous, "rdzv-conf", 0, "K=V,...",
     "settings of the rendezvous. join_timeout, last_call_timeout, timeout: seconds; "
     "keep_alive_interval (seconds, default 5) times keep_alive_max_attempt (default 3): like "
     "--lease, which wins; rank: like --node-rank; is_host: true or false. With --rdzv-backend "
     "c10d also store_type=file: the "
     "nodes meet through the shared file that --rdzv-endpoint names. With etcd also protocol "
     "(http, https), cacert, cert, key (files) and etcd_prefix (default /ddp-run/), but not "
     "is_host. Blanks around keys and values are ignored; other keys have no effect",
     "--rdzv-conf join_timeout=120,is_host=true"},
    {kRendezvous, "rdzv-replicas", 0, "N",
     "how many ddp-runs keep the job's record together, 1 to 7 and odd (default 3 with three nodes "
     "or more, else 1). With 3, any node may be lost, also the one that hosts the rendezvous; with "
     "5, two at once. Not with etcd, which keeps the record itself",
     "--rdzv-replicas 5", true},
    {kRendezvous, "node-rank", 0, "N",
     "rank of this node among the nodes (default: its number in the SLURM step, or decided when "
     "they meet). If --rdzv-backend c10d or etcd is given, it is only a preference; with "
     "--standalone it has no effect",
     "--node-rank 1"},
    {kRendezvous, "master-addr", 0, "HOST",
     "torchrun's older spelling of --rdzv-endpoint. The node with --node-rank 0 runs the "
     "rendezvous, whatever its own addresses are",
     "--master-addr node0"},
    {kRendezvous, "master-port", 0, "PORT", "port for --master-addr (default 29500)",
     "--master-port 29500"},
    {kRendezvous, "local-addr", 0, "ADDR",
     "address at which other nodes reach this node (default: the one that the rendezvous sees)",
     "--local-addr 10.0.0.7"},

    {kRendezvous, "rdzv-token-file", 0, "FILE",
     "file with the job's secret: only nodes that know it may join, and their workers reach the "
     "store through their agent. The secret is the same on all nodes; only its owner may be able "
     "to read the file (chmod 600). DDP_RDZV_TOKEN in the environment can hold the secret instead",
     "--rdzv-token-file ~/.ddp-run-token", true},
    {kRendezvous, "tls-cert", 0, "FILE",
     "this node's certificate in PEM: mutual TLS then protects what ddp-run, its agents and ranks "
     "of libddp send to other nodes, store traffic included; not what gloo and NCCL send. The "
     "certificate of the node that runs the rendezvous must name the endpoint's host; with --hosts "
     "and no endpoint, this machine's address (--local-addr). Needs --tls-key and --tls-ca",
     "--tls-cert node.pem --tls-key node.key --tls-ca ca.pem", true},
    {kRendezvous, "tls-key", 0, "FILE", "private key of --tls-cert, without a passphrase", "",
     true},
    {kRendezvous, "tls-ca", 0, "FILE",
     "certificate of the authority that signs the certificates of all nodes", "", true},
    {kRendezvous, "any-user", 0, "",
     "let other users of this machine in, and join a rendezvous of another user: for workers that "
     "change their user, or a Prometheus that runs here; else only this user and root are let in",
     "", true},

    {kProgram, "module", 'm', "", "the program is a Python module: python3 -u -m MODULE",
     "ddp-run -m pkg.train --lr 1"},
    {kProgram, "no-python", 0, "", "run the program directly, even if it looks like Python",
     "ddp-run --no-python ./train.py"},
    {kProgram, "run-path", 0, "",
     "run the Python script with runpy.run_path; wins over --no-python",
     "ddp-run --run-path ./train"},

    {kFailure, "max-restarts", 0, "N",
     "how often the whole job may be restarted after failures (default 0)", "--max-restarts 3"},
    {kFailure, "max-no-progress", 0, "N",
     "end the job after N restarts in a row without a new step (default 3; 0: no limit). For "
     "workers that report steps",
     "--max-no-progress 5", true},
    {kFailure, "restart-on-start-failure", 0, "",
     "restart the job even if no worker has made a step yet. For workers that report steps",
     "ddp-run --max-restarts 3 --restart-on-start-failure train.py", true},
    {kFailure, "max-node-failures", 0, "N",
     "leave out a node on which the job failed N times within an hour, if the other nodes are "
     "enough (default 3; 0: never)",
     "--max-node-failures 5", true},
    {kFailure, "health-check", 0, "",
     "look at this node for what breaks jobs (memory, limits, disk, GPUs) before it joins. A node "
     "that fails is left out, and a spare takes its place. ddp-run check also looks at the network",
     "ddp-run --health-check --nnodes 4 --rdzv-endpoint node0:29400 train.py", true},
    {kFailure, "check-dir", 0, "DIR",
     "the job's checkpoint folder, for --health-check and ddp-run check: they look at its free "
     "space and at how fast it can be written",
     "--check-dir /shared/run1", true},
    {kFailure, "progress-timeout", 0, "SECONDS",
     "a worker that reports no new step for this long counts as hung: its stacks are written to "
     "its log, and it is ended as failed (default 0: never)",
     "--progress-timeout 60", true},
    {kFailure, "standby", 0, "N",
     "start N more workers on this node, which replace lost ones at once; for programs that use "
     "ddp::run_elastic (default 0)",
     "--standby 1", true},
    {kFailure, "last-call", 0, "SECONDS",
     "how long to wait for more nodes once MIN are there (default 30)", "--last-call 5", true},
    {kFailure, "scale-up-timeout", 0, "SECONDS",
     "how long workers may take to commit before a new node comes in (default 60)",
     "--scale-up-timeout 10", true},
    {kFailure, "join-timeout", 0, "SECONDS",
     "how long to wait for the rendezvous and for the nodes (default 600)", "--join-timeout 60",
     true},
    {kFailure, "shutdown-timeout", 0, "SECONDS",
     "how long workers have between SIGTERM and SIGKILL (default 30, or "
     "TORCH_ELASTIC_SHUTDOWN_TIMEOUT). A worker that still lives after the same time again, at "
     "least 5 s, is given up",
     "--shutdown-timeout 120"},
    {kFailure, "signals-to-handle", 0, "SIGNAL,...",
     "signals to ddp-run that end the workers; the workers get the same signal (default "
     "SIGTERM,SIGINT,SIGHUP,SIGQUIT). Workers find the list in TORCHELASTIC_SIGNALS_TO_HANDLE",
     "--signals-to-handle SIGTERM,SIGINT,SIGUSR2"},
    {kFailure, "checkpoint-signal", 0, "SIGNAL|none",
     "signal to ddp-run that asks the workers for a checkpoint (default USR1)",
     "--checkpoint-signal USR2", true},
    {kFailure, "lease", 0, "SECONDS",
     "how long a node may say nothing before it counts as lost (default 5). A machine that is gone "
     "or cut off is noticed within a second anyway; this is for one that is there and stands still",
     "--lease 10", true},
    {kFailure, "exclude-stragglers", 0, "RATIO",
     "replace a node by a spare if one of its workers computes RATIO times as long a step as the "
     "others for half a minute, 1.2 or more (default: never). For workers of libddp that report "
     "steps",
     "--exclude-stragglers 1.5", true},
    {kFailure, "coordinator-timeout", 0, "SECONDS",
     "how long to look for a rendezvous daemon that was lost (default 60)",
     "--coordinator-timeout 300", true},

    {kSlurm, "requeue-before", 0, "SECONDS",
     "how long before the job's time limit the workers write a checkpoint, if they can, and the "
     "job goes back into the queue (default 60; 0: only when SLURM sends its own signal)",
     "--requeue-before 300", true},
    {kSlurm, "no-requeue", 0, "",
     "do not put a stopped job back into the queue: SIGUSR1 only asks for a checkpoint, and the "
     "time limit ends the job",
     "srun ddp-run --no-requeue train.py", true},

    {kOutput, "log-dir", 0, "DIR",
     "also write each worker's output to DIR/ID/round_K/rank_R.HOST.out and .err; DIR/latest leads "
     "to the newest job. Files are never deleted: those of an earlier start of the same ID are "
     "kept as FILE.1, FILE.2, ... With /dev/null there are no files, whatever other flags say",
     "--log-dir logs"},
    {kOutput, "redirects", 'r', "0-3|R:N,...",
     "write output to the log file and not to the console: 1 stdout, 2 stderr, 3 both (default 0). "
     "0:1,2-3:3 is by local rank on each node, @8-15:3 by global rank. Without --log-dir, files "
     "are in ./ddp-run-logs",
     "-r 0:1,@8-15:3"},
    {kOutput, "tee", 't', "0-3|R:N,...",
     "write output to the log file and to the console, with values like those of --redirects; wins "
     "over --redirects",
     "-t 3"},
    {kOutput, "local-ranks-filter", 0, "RANKS",
     "show only workers with these local ranks; files have all", "--local-ranks-filter 0"},
    {kOutput, "ranks-filter", 0, "RANKS",
     "show only workers with these global ranks; with --local-ranks-filter, workers that match "
     "either flag",
     "--ranks-filter 0,8-15", true},
    {kOutput, "duplicate-stdout-filters", 0, "TEXT,...",
     "also copy stdout lines that contain one of these texts to one file per node, "
     "DIR/ID/round_K/node_G/filtered_stdout.log; ,, stands for a comma",
     "--duplicate-stdout-filters loss,accuracy"},
    {kOutput, "duplicate-stderr-filters", 0, "TEXT,...", "the same for stderr",
     "--duplicate-stderr-filters Error"},
    {kOutput, "log-line-prefix-template", 0, "TEMPLATE",
     "prefix of each line on the console, with ${role_name}, ${rank}, ${local_rank}, ${hostname}, "
     "${node_rank}, ${time} (default: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, or "
     "'[${hostname}:${rank}] ', or no prefix for a single worker)",
     "--log-line-prefix-template '${time} ${rank}: '"},
    {kOutput, "no-log-prefix", 0, "", "print lines on the console without a prefix", "", true},
    {kOutput, "no-status-line", 0, "",
     "do not show the line with round, workers, step and loss at the bottom of a terminal", "",
     true},
    {kOutput, "role", 0, "NAME", "ROLE_NAME of the workers (default: default)", "--role trainer"},
    {kOutput, "event-log-handler", 0, "null|console|json:FILE",
     "where torchelastic's events go, one JSON object per line (default null)",
     "--event-log-handler json:events.json"},
    {kOutput, "page-file", 0, "FILE",
     "at the end of the job, write the page of the rendezvous' port as one HTML file, on the node "
     "that coordinates then",
     "--page-file job.html", true},
    {kOutput, "trace", 0, "FILE",
     "write what each rank does when to this file, from the first step to the last, for "
     "ui.perfetto.dev; on the node that coordinates",
     "--trace job.json", true},

    {kCommand, "dry-run", 0, "",
     "show what would be started where, with each worker's environment, and start nothing",
     "ddp-run --dry-run --nproc-per-node 2 train.py", true},
    {kCommand, "print-completion", 0, "bash|zsh|tcsh|fish",
     "print the script with which a shell completes this command line",
     "ddp-run --print-completion zsh > ~/.zsh/completions/_ddp-run"},
    {kCommand, "help", 'h', "", "print this text", ""},
    {kCommand, "version", 0, "", "print the version", "", true},

    {kAccepted, "monitor-interval", 0, "SECONDS",
     "no effect: ddp-run sees the end of a worker at once", "--monitor-interval 0.1"},
    {kAccepted, "start-method", 0, "spawn|fork|forkserver",
     "no effect: workers are always new processes", "--start-method spawn"},
    {kAccepted, "logs-specs", 0, "default", "no effect: only default is accepted",
     "--logs-specs default"},
});

constexpr auto kDefaultWhenEmpty = std::to_array<std::string_view>(
    {"rdzv-endpoint", "rdzv-id", "rdzv-conf", "local-addr", "log-dir", "local-ranks-filter",
     "ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters",
     "log-line-prefix-template"});
constexpr auto kItselfWhenEmpty = std::to_array<std::string_view>({"role"});

constexpr std::size_t kColumn = 34;
constexpr std::size_t kWidth = 110;

// Appends words from column kColumn on and breaks lines before kWidth. `column` is where the cursor
// is at first. Two blanks or a new line end what is there: help2man finds the words by that.
void append_wrapped(std::string& out, std::size_t column, std::string_view words) {
  if (column + 2 > kColumn) {
    out += '\n';
    column = 0;
  }
  out.append(kColumn - column, ' ');
  column = kColumn;
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(' '));
    words.remove_prefix(std::min(words.size(), word.size() + 1));
    if (column > kColumn && column + 1 + word.size() > kWidth) {
      out += '\n';
      out.append(kColumn, ' ');
      column = kColumn;
    } else if (column > kColumn) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  out += '\n';
}

}  // namespace

std::span<const Flag> all_flags() { return kFlags; }

const Flag* find_flag(std::string_view name) {
  for (const Flag& flag : kFlags) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

WhenEmpty Flag::when_empty() const {
  const auto is_in = [this](const auto& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (is_in(kDefaultWhenEmpty)) return WhenEmpty::kDefault;
  return is_in(kItselfWhenEmpty) ? WhenEmpty::kItself : WhenEmpty::kMissing;
}

std::string help_text() {
  std::string out =
      "ddp-run [FLAG...] PROGRAM [ARG...]\n"
      "\n"
      "Starts the workers of a distributed job on this node; each worker runs PROGRAM. A Python "
      "script, or a folder\n"
      "or zip archive with __main__.py, runs under python3 -u (or $PYTHON_EXEC). A native program, "
      "or an executable\n"
      "file with a #! line, runs directly. Everything after PROGRAM belongs to it; there, "
      "$local_rank stands for the\n"
      "worker's local rank, and $$ for one dollar. Flags may be shortened, and written with - or "
      "_. PET_NAME in the\n"
      "environment sets the default of --name. LOGLEVEL (INFO, WARNING, ERROR) sets how much "
      "ddp-run says.\n";
  std::string_view group;
  for (const Flag& flag : kFlags) {
    if (flag.group != group) out += fmt::format("\n{}:\n", flag.group);
    group = flag.group;
    std::string left = flag.letter != 0 ? fmt::format("  -{}, --{}", flag.letter, flag.name)
                                        : fmt::format("  --{}", flag.name);
    if (!flag.placeholder.empty()) left += fmt::format(" {}", flag.placeholder);
    out += left;
    append_wrapped(out, left.size(), flag.help);
    if (!flag.example.empty()) append_wrapped(out, 0, fmt::format("Example: {}", flag.example));
  }
  out +=
      "\nddp-run status HOST[:PORT] shows the jobs of a running rendezvous: nodes, ranks, steps, "
      "restarts and the first\nfailure (ddp-run status --help). ddp-run top HOST[:PORT] shows a "
      "job as it runs (ddp-run top --help).\n"
      "\nTwo nodes, the same line on both:\n"
      "  ddp-run --nnodes 2 --nproc-per-node gpu --rdzv-endpoint node0:29400 --rdzv-id run1 "
      "train.py\n"
      "\nThe exit status is that of the first worker that failed, 128 + n if signal n ended it. "
      "ddp-run's own: 2 the\n"
      "command line cannot be read, 64 a value is wrong, 66 port in use, 67 nodes missing, 71 "
      "rendezvous lost, 72 node\n"
      "lost, 74 refused, 77 this node is not fit, 78 a worker cannot be killed, 126 program not "
      "executable, 127 program\n"
      "not found.\n";
  return out;
}

std::string_view flag_of_other_launchers(std::string_view name) {
  // mpirun's, srun's and accelerate's, too.
  constexpr auto kWorkers = std::to_array<std::string_view>(
      {"n", "np", "ntasks-per-node", "nprocs", "num-processes", "num-workers", "workers", "gpus",
       "num-gpus", "gpus-per-node"});
  constexpr auto kNodes = std::to_array<std::string_view>({"nodes", "num-machines", "machines"});
  if (std::ranges::find(kWorkers, name) != kWorkers.end()) return "nproc-per-node";
  if (std::ranges::find(kNodes, name) != kNodes.end()) return "nnodes";
  return {};
}

std::string_view nearest_flag(std::string_view name) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Flag& flag : kFlags) all.emplace_back(flag.name);
    return all;
  }();
  return nearest_of(name, names);
}

}  // namespace ddp::flags
