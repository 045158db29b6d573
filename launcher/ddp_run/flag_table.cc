#include "launcher/ddp_run/flag_table.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/nearest.h"

namespace ddp::run {
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
     "one node, no rendezvous to name: the port is chosen by the system. Implied without "
     "--rdzv-endpoint and --master-addr",
     "ddp-run --standalone --nproc-per-node 2 train.py"},
    {kSize, "nnodes", 0, "N|MIN:MAX",
     "number of nodes, or a range: the job starts with MIN and takes in up to MAX "
     "(default 1)",
     "--nnodes 2:4"},
    {kSize, "nproc-per-node", 0, "N|auto|cpu|gpu|xpu|hpu|npu",
     "workers on this node; gpu: one per CUDA device; gpu:2,4,7: one for each of these (as "
     "--devices); xpu: per Intel GPU; hpu: per Gaudi; npu: per Ascend NPU; cpu: one per usable "
     "core; auto: per accelerator if there is one, else cpu (default 1)",
     "--nproc-per-node gpu"},
    {kSize, "devices", 0, "N,...",
     "the CUDA devices of the job on this node, as CUDA counts those that ddp-run sees, or their "
     "names (GPU-...): CUDA_VISIBLE_DEVICES of the workers; one worker for each unless "
     "--nproc-per-node says otherwise",
     "--devices 2,4,7", true},
    {kSize, "virtual-local-rank", 0, "",
     "each worker sees one device, which is its number 0, and LOCAL_RANK is 0 everywhere",
     "ddp-run --devices 2,4 --virtual-local-rank train.py"},
    {kSize, "numa-binding", 0, "node|socket|exclusive|core-complex",
     "CPUs of each worker: those of the NUMA node of its device (by local rank where there is "
     "none), of that node's socket, a share of the node's cores that no other worker has, or cores "
     "that share a cache",
     "--numa-binding exclusive"},
    {kSize, "spares", 0, "N",
     "how many nodes may wait beyond MAX to take the place of a lost one (default: any number)",
     "--spares 2", true},

    {kHosts, "hosts", 0, "HOST[:SLOTS],...",
     "start the job on these machines, each by ssh, all from here: SLOTS workers on a machine "
     "(default --nproc-per-node), --nnodes as many as there are. Same ddp-run path and working "
     "directory there; Ctrl-C here ends all; the rendezvous runs here, at a port of its own",
     "ddp-run --hosts node0,node1:4 train.py", true},
    {kHosts, "hostfile", 0, "FILE",
     "the same from a file: HOST, HOST:SLOTS or HOST slots=N a line, # for comments",
     "--hostfile hosts.txt", true},
    {kHosts, "launch-agent", 0, "COMMAND",
     "what starts a program there instead of ssh; {host} in it is the machine's name, which is put "
     "behind it otherwise. It has to pass standard input and output on",
     "--launch-agent \"kubectl exec -i {host} --\"", true},
    {kHosts, "export", 'x', "NAME[=VALUE]",
     "a variable for the workers there; ssh passes none on by itself. May be repeated",
     "-x LD_LIBRARY_PATH -x NCCL_DEBUG=INFO", true, true},

    {kRendezvous, "rdzv-endpoint", 0, "HOST[:PORT]",
     "where the rendezvous daemon is. The ddp-run whose machine has "
     "this address runs it, unless one answers there already (default port 29400)",
     "--rdzv-endpoint node0:29400"},
    {kRendezvous, "rdzv-id", 0, "ID", "name of the job, the same on all nodes (default: none)",
     "--rdzv-id mnist-7"},
    {kRendezvous, "rdzv-backend", 0, "c10d|static|etcd",
     "c10d and static both mean ddp-run's own rendezvous (default). etcd: --rdzv-endpoint "
     "HOST:PORT,... names an etcd cluster (default port 2379), which keeps the job's state; any "
     "node may coordinate, and when it is lost another one does. Needs --rdzv-id",
     "--rdzv-backend etcd --rdzv-endpoint etcd0,etcd1,etcd2 --rdzv-id mnist-7"},
    {kRendezvous, "rdzv-conf", 0, "K=V,...",
     "join_timeout, last_call_timeout, timeout (seconds), rank (as --node-rank) and is_host "
     "(true, false), each with a value, blanks around them left out; with --rdzv-backend c10d: "
     "store_type=file, where --rdzv-endpoint is a file that all nodes share, through which they "
     "meet; with etcd: protocol (http, https), cacert, cert, key (files) and etcd_prefix "
     "(default /ddp-run/); other keys have no effect",
     "--rdzv-conf join_timeout=120,is_host=true"},
    {kRendezvous, "node-rank", 0, "N",
     "rank of this node among the nodes (default: its number in the SLURM step, or decided when "
     "they meet); with --rdzv-backend c10d or etcd written out only a wish, with --standalone "
     "nothing",
     "--node-rank 1"},
    {kRendezvous, "master-addr", 0, "HOST",
     "as --rdzv-endpoint, torchrun's older spelling; --node-rank 0 runs the rendezvous, whatever "
     "its own addresses are",
     "--master-addr node0"},
    {kRendezvous, "master-port", 0, "PORT", "port that goes with --master-addr (default 29500)",
     "--master-port 29500"},
    {kRendezvous, "local-addr", 0, "ADDR",
     "address other nodes reach this node at (default: the one the rendezvous "
     "sees)",
     "--local-addr 10.0.0.7"},
    {kRendezvous, "interface", 0, "NAME",
     "the network interface whose address other nodes reach this node at; the workers' Gloo and "
     "NCCL use it, too",
     "--interface lo", true},

    {kRendezvous, "rdzv-token-file", 0, "FILE",
     "the job's secret: only nodes that know it may join, and PyTorch's store clients are let in "
     "from "
     "the job's nodes only. The same on all nodes, readable by its owner alone (chmod 600); "
     "DDP_RDZV_TOKEN in the environment holds the secret itself",
     "--rdzv-token-file ~/.ddp-run-token", true},
    {kRendezvous, "tls-cert", 0, "FILE",
     "this node's certificate in PEM: what ddp-run and its agents say to the rendezvous is then "
     "encrypted, and both sides show certificates. That of the rendezvous must hold the endpoint's "
     "host name; with --hosts and no endpoint, this machine's address (--local-addr). Store "
     "traffic is not encrypted. Needs --tls-key and --tls-ca",
     "--tls-cert node.pem --tls-key node.key --tls-ca ca.pem", true},
    {kRendezvous, "tls-key", 0, "FILE", "its key, without a passphrase", "", true},
    {kRendezvous, "tls-ca", 0, "FILE", "the certificate of who signs those of the job's nodes", "",
     true},

    {kProgram, "module", 'm', "", "the program is a Python module: python3 -u -m MODULE",
     "ddp-run -m pkg.train --lr 1"},
    {kProgram, "no-python", 0, "", "run the program itself even if it looks like one for Python",
     "ddp-run --no-python ./train.py"},
    {kProgram, "run-path", 0, "",
     "run the Python script by runpy in an interpreter that runs already; wins over --no-python",
     "ddp-run --run-path ./train"},

    {kFailure, "max-restarts", 0, "N",
     "how often the whole job may be restarted after failures (default 0)", "--max-restarts 3"},
    {kFailure, "max-no-progress", 0, "N",
     "end the job after N restarts without a new step, where workers report steps (default 3; 0: "
     "no limit)",
     "--max-no-progress 5", true},
    {kFailure, "restart-on-start-failure", 0, "",
     "restart also where no worker had made a step yet, where workers report steps",
     "ddp-run --max-restarts 3 --restart-on-start-failure train.py", true},
    {kFailure, "progress-timeout", 0, "SECONDS",
     "a worker that reports no new step for so long hangs: its stacks are written to its log and "
     "it counts as lost (default 0: never)",
     "--progress-timeout 60", true},
    {kFailure, "standby", 0, "N",
     "start N more workers on this node, which take the place of others at once; for programs "
     "with ddp::run_elastic (default 0)",
     "--standby 1", true},
    {kFailure, "last-call", 0, "SECONDS",
     "how long to wait for more nodes once MIN are there (default 30)", "--last-call 5", true},
    {kFailure, "scale-up-timeout", 0, "SECONDS",
     "how long workers have to commit before a new node comes in (default 60)",
     "--scale-up-timeout 10", true},
    {kFailure, "join-timeout", 0, "SECONDS",
     "how long to wait for the rendezvous and for the nodes (default 600)", "--join-timeout 60",
     true},
    {kFailure, "shutdown-timeout", 0, "SECONDS",
     "what workers get between SIGTERM and SIGKILL (default 30, or "
     "TORCH_ELASTIC_SHUTDOWN_TIMEOUT); one that lives on for as long again, 5 s at least, is given "
     "up",
     "--shutdown-timeout 120"},
    {kFailure, "exit-barrier-timeout", 0, "SECONDS",
     "how long a node whose workers are through waits for the others before it leaves (default: as "
     "long as it takes, or TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT)",
     "--exit-barrier-timeout 300", true},
    {kFailure, "signals-to-handle", 0, "SIGNAL,...",
     "signals to ddp-run that end the workers, each by that signal (default "
     "SIGTERM,SIGINT,SIGHUP,SIGQUIT); workers find the list in TORCHELASTIC_SIGNALS_TO_HANDLE",
     "--signals-to-handle SIGTERM,SIGINT,SIGUSR2"},
    {kFailure, "checkpoint-signal", 0, "SIGNAL|none",
     "signal to ddp-run that asks the workers for a checkpoint (default USR1)",
     "--checkpoint-signal USR2", true},
    {kFailure, "coordinator-timeout", 0, "SECONDS",
     "how long to look for a rendezvous daemon that was lost "
     "(default 60)",
     "--coordinator-timeout 300", true},

    {kSlurm, "requeue-before", 0, "SECONDS",
     "how long before the end of the job's time its workers write a checkpoint, if they can, and "
     "the job goes back into the queue (default 60; 0: only when SLURM's own signal comes)",
     "--requeue-before 300", true},
    {kSlurm, "no-requeue", 0, "",
     "a job that is stopped does not go back into the queue: SIGUSR1 only asks for a checkpoint, "
     "and the end of the job's time is the end",
     "srun ddp-run --no-requeue train.py", true},

    {kOutput, "log-dir", 0, "DIR",
     "also write each worker's output to DIR/ID/round_K/rank_R.HOST.out and .err; DIR/latest leads "
     "to the newest job. Files are never deleted: those of an earlier start of the same ID are "
     "kept as FILE.1, FILE.2, ... /dev/null: no files, whatever else is said",
     "--log-dir logs"},
    {kOutput, "redirects", 'r', "0-3|R:N,...",
     "to the log file and not to the console: 1 stdout, 2 stderr, 3 both; or by local rank on each "
     "node, 0:1,2-3:3, or behind @ by global rank, @8-15:3 (default 0). Without --log-dir files "
     "are in ./ddp-run-logs",
     "-r 0:1,@8-15:3"},
    {kOutput, "tee", 't', "0-3|R:N,...",
     "to the log file and to the console, likewise; counts more than --redirects", "-t 3"},
    {kOutput, "local-ranks-filter", 0, "RANKS",
     "only workers with these local ranks are shown; files have all", "--local-ranks-filter 0"},
    {kOutput, "ranks-filter", 0, "RANKS",
     "only workers with these global ranks are shown; with --local-ranks-filter those of either",
     "--ranks-filter 0,8-15", true},
    {kOutput, "duplicate-stdout-filters", 0, "TEXT,...",
     "lines of stdout with one of these texts also go to one file of the node, "
     "DIR/ID/round_K/node_G/filtered_stdout.log; ,, is a comma",
     "--duplicate-stdout-filters loss,accuracy"},
    {kOutput, "duplicate-stderr-filters", 0, "TEXT,...", "likewise for stderr",
     "--duplicate-stderr-filters Error"},
    {kOutput, "log-line-prefix-template", 0, "TEMPLATE",
     "what stands before each line on the console, with ${role_name}, ${rank}, ${local_rank}, "
     "${hostname}, ${node_rank}, ${time} (default TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, or "
     "'[${hostname}:${rank}] ', and nothing for a single worker)",
     "--log-line-prefix-template '${time} ${rank}: '"},
    {kOutput, "no-log-prefix", 0, "", "nothing stands before the lines on the console", "", true},
    {kOutput, "fold", 0, "",
     "a line that several workers of this node write within 0.2 s is shown once, with their ranks",
     "", true},
    {kOutput, "no-status-line", 0, "",
     "no line with round, workers, step and loss at the bottom of a terminal", "", true},
    {kOutput, "console-timeout", 0, "SECONDS",
     "when nobody has taken output from the console for so long, lines are left out there so that "
     "workers go on; 0: they wait (default 30)",
     "--console-timeout 5", true},
    {kOutput, "role", 0, "NAME", "ROLE_NAME of the workers (default: default)", "--role trainer"},
    {kOutput, "event-log-handler", 0, "null|console|json:FILE",
     "where torchelastic's events go, a JSON object a line (default null)",
     "--event-log-handler json:events.json"},

    {kCommand, "config", 0, "FILE",
     "flags from a JSON file: {\"nnodes\": \"2:4\", \"standalone\": false, \"program\": "
     "\"train.py\", \"arguments\": [\"--lr\", \"1\"]}. The command line wins over PET_NAME, that "
     "over the "
     "file, and that over the defaults",
     "--config job.json", true},
    {kCommand, "dry-run", 0, "",
     "say what would be started where, with the environment each worker would get, and start "
     "nothing",
     "ddp-run --dry-run --nproc-per-node 2 train.py", true},
    {kCommand, "print-completion", 0, "bash|zsh|tcsh|fish",
     "print a script by which a shell completes this command line",
     "ddp-run --print-completion zsh > ~/.zsh/completions/_ddp-run"},
    {kCommand, "help", 'h', "", "this text", ""},
    {kCommand, "version", 0, "", "the version", "", true},

    {kAccepted, "monitor-interval", 0, "SECONDS", "no effect: a worker's end is seen at once",
     "--monitor-interval 0.1"},
    {kAccepted, "start-method", 0, "spawn|fork|forkserver",
     "no effect: workers are always new processes", "--start-method spawn"},
    {kAccepted, "logs-specs", 0, "default", "no effect: only default is taken",
     "--logs-specs default"},
});

constexpr auto kDefaultWhenEmpty = std::to_array<std::string_view>(
    {"rdzv-endpoint", "rdzv-id", "rdzv-conf", "local-addr", "log-dir", "local-ranks-filter",
     "ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters",
     "log-line-prefix-template"});
constexpr auto kItselfWhenEmpty = std::to_array<std::string_view>({"role"});

constexpr std::size_t kColumn = 34;
constexpr std::size_t kWidth = 110;

// Appends words behind column kColumn, breaking lines before kWidth. The cursor is at `column` when
// it starts.
void append_wrapped(std::string& out, std::size_t column, std::string_view words) {
  if (column + 1 > kColumn) {
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
      "Starts PROGRAM as the workers of a distributed job, once per node. A Python script, or a "
      "folder or zip\n"
      "archive with __main__.py, runs under python3 -u (or $PYTHON_EXEC); what is executable with "
      "a #! line, or\n"
      "native, is executed. Everything after PROGRAM belongs to it; $local_rank there is the "
      "worker's local rank, $$ one\n"
      "dollar. Flags may be written with - or _ and shortened; PET_NAME in the environment sets "
      "--name's default,\n"
      "LOGLEVEL (INFO, WARNING, ERROR) how much ddp-run says.\n";
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
      "\nddp-run status HOST[:PORT] shows the jobs of a rendezvous that runs: nodes, ranks, steps, "
      "restarts, the first\nfailure (ddp-run status --help).\n"
      "\nTwo nodes, the same line on both:\n"
      "  ddp-run --nnodes 2 --nproc-per-node gpu --rdzv-endpoint node0:29400 --rdzv-id run1 "
      "train.py\n"
      "\nThe exit status is that of the first worker that failed, 128 + n if signal n ended it. "
      "ddp-run's own: 2 the\n"
      "command line cannot be read, 64 a value is wrong, 66 port in use, 67 nodes missing, 71 "
      "rendezvous lost, 72 node\n"
      "lost, 74 refused, 126 program not executable, 127 program not found.\n";
  return out;
}

std::string_view nearest_flag(std::string_view name) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Flag& flag : kFlags) all.emplace_back(flag.name);
    return all;
  }();
  return nearest_of(name, names);
}

}  // namespace ddp::run
