#pragma once

#include <set>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tests/unit/launcher/ddp_run_lines.h"

namespace ddp::flags {

// One flag of the table with its expected properties, for ddp_run_every_flag_test.cc.
struct FlagRow {
  std::string name;   // With dashes.
  std::string value;  // A right one that is not the default; empty for a flag without one.
  // The shortest beginning that means this flag, as a person would type it.
  std::string prefix;
  // A wrong one with its message behind "--name value: "; empty: none is wrong.
  std::string wrong = {};
  std::string message = {};
  Arguments others = {};    // What a line with it needs besides.
  bool no_effect = false;   // Nothing in Options says that it was given.
  bool incomplete = false;  // A line with `others` and without it is wrong.
};

// A file that stays for as long as the program.
inline std::string host_file() {
  static const test::TempDir folder;
  static const std::string path = folder.write("hosts", "node0\nnode1 slots=4\n");
  return path;
}

inline const std::string kNodes = "not a number of nodes; write N or MIN:MAX, for example 2 or 2:4";
inline const std::string kSeconds0 = "not a number of seconds from 0; write for example 60 or 0.5";
inline const std::string kSeconds = "not a number of seconds above 0; write for example 60 or 0.5";
inline const std::string kMillion = "not a whole number from 0 to 1000000";
inline const Arguments kTwoNodes{"--nnodes=2:4", "--rdzv-endpoint=node0:1"};
inline const std::string kSignal =
    "'XYZ' is not a signal; write a name or a number, for example USR1, SIGUSR1 or 10";

inline const std::string kStreams4 = "'4' is not 0 (none), 1 (stdout), 2 (stderr) or 3 (both)";
inline const std::string kRanksX =
    "'x' is not a rank or a range of ranks; write for example 0,8-15";

inline const std::vector<FlagRow> kFlagRows{
    // How large.
    {"standalone", "", "standa"},
    {"nnodes", "2:4", "nn", "4:x", kNodes, {"--rdzv-endpoint=node0:1"}},
    {"nproc-per-node", "3", "npr", "many",
     "neither a number of workers from 1 to 4096 nor auto, cpu, gpu, xpu, hpu or npu; for devices "
     "of another kind, write their number; --devices chooses devices, for example 2,4"},
    {"devices", "2,4", "dev", "2,x", "'x' is not a CUDA device; write numbers, for example 2,4,7"},
    {"virtual-local-rank", "", "vir"},
    {"numa-binding", "socket", "num", "cpu",
     "the values are node, socket, exclusive and core-complex"},
    // Where the nodes meet.
    {"rdzv-endpoint", "node7:99", "rdzv-e", "a b",
     "'a b' is not a host name: 'a b' has other characters than letters, digits, '-' and '_'; "
     "write "
     "HOST or HOST:PORT, for example node0:29400 or [fd00::1]:29400"},
    {"rdzv-id", "job7", "rdzv-i", "a/b", "a job's name has 1 to 128 characters and no /"},
    {"rdzv-backend",
     "etcd",
     "rdzv-b",
     "mpi",
     "the backends are c10d and static, which both mean ddp-run's own rendezvous, and etcd",
     {"--rdzv-endpoint=e", "--rdzv-id=j"}},
    {"rdzv-conf", "join_timeout=7", "rdzv-c", "join_timeout",
     "'join_timeout' is not KEY=VALUE; write for example join_timeout=60,is_host=true"},
    {"rdzv-replicas", "3", "rdzv-r", "2",
     "an even number of replicas bears no more losses than one less; write 1"},
    {"node-rank", "1", "nod", "x", "not a whole number from -1 to 999999", kTwoNodes},
    {"master-addr", "m", "master-a", "m:1",
     "not a host name or address; the port goes into --master-port"},
    {"master-port", "7", "master-p", "70000", "not a whole number from 0 to 65535"},
    {"local-addr", "10.0.0.7", "local-a"},
    {"rdzv-token-file", "token", "rdzv-t"},
    {"tls-cert", "n.pem", "tls-ce", "", "", {"--tls-key=k", "--tls-ca=c"}, false, true},
    {"tls-key", "n.key", "tls-k", "", "", {"--tls-cert=n", "--tls-ca=c"}, false, true},
    {"tls-ca", "ca.pem", "tls-ca", "", "", {"--tls-cert=n", "--tls-key=k"}, false, true},
    {"any-user", "", "an"},
    // Other machines.
    {"hosts", "node0,node1:4", "hosts"},
    {"hostfile", host_file(), "hostf"},
    {"launch-agent", "pdsh {host}", "lau", "", "", {"--hosts=a"}},
    {"export",
     "NAME=7",
     "exp",
     "=7",
     "not a variable name; write NAME or NAME=VALUE",
     {"--hosts=a"}},
    // The program.
    {"module", "", "mod"},
    {"no-python", "", "no-p"},
    {"run-path", "", "run"},
    // Failures and time limits.
    {"max-restarts", "7", "max-r", "-1", kMillion},
    {"max-no-progress", "7", "max-no-", "x", kMillion},
    {"restart-on-start-failure", "", "rest"},
    {"max-node-failures", "7", "max-nod", "x", kMillion},
    {"health-check", "", "hea"},
    {"check-dir", "/shared/run1", "check-"},
    {"progress-timeout", "7", "prog", "x", kSeconds0},
    {"standby", "1", "standb", "9999", "not a whole number from 0 to 1024"},
    {"last-call", "7", "las", "x", kSeconds0},
    {"scale-up-timeout", "7", "sca", "x", kSeconds0},
    {"join-timeout", "7", "joi", "0", kSeconds},
    {"shutdown-timeout", "7", "shu", "x", kSeconds0},
    {"coordinator-timeout", "7", "coo", "x", kSeconds0},
    {"lease", "7", "le", "0.4", "not from 0.5 to 3600 seconds; write for example 5 or 1.5"},
    {"exclude-stragglers", "1.5", "exc", "1.1",
     "not a number from 1.2 to 100; write for example 1.5"},
    {"signals-to-handle", "SIGTERM,usr2", "sig", "SIGTERM,KILL",
     "no program can handle 'KILL'; choose another signal"},
    {"checkpoint-signal", "USR2", "checkp", "XYZ", kSignal},
    // Under SLURM.
    {"requeue-before", "7", "req", "x", kSeconds0},
    {"no-requeue", "", "no-r"},
    // Output.
    {"log-dir", "logs", "log-d"},
    {"redirects", "0:1,@8-15:3", "red", "4", kStreams4},
    {"tee", "3", "te", "4", kStreams4},
    {"local-ranks-filter", "0,2-3", "local-r", "x", kRanksX},
    {"ranks-filter", "0,2-3", "ran", "x", kRanksX},
    {"duplicate-stdout-filters", "loss", "duplicate-stdo"},
    {"duplicate-stderr-filters", "Error", "duplicate-stde"},
    {"log-line-prefix-template", "${rank}: ", "log-l"},
    {"no-log-prefix", "", "no-l"},
    {"no-status-line", "", "no-s"},
    {"role", "trainer", "rol"},
    {"event-log-handler", "console", "eve", "kafka",
     "the values are null, console and json:FILE, for example json:events.json"},
    {"page-file", "job.html", "pag", "jobs/", "not the name of a file"},
    {"trace", "job.json", "tra", "jobs/", "not the name of a file"},
    // ddp-run itself.
    {"dry-run", "", "dry"},
    {"print-completion", "zsh", "pri", "ksh", "the values are bash, zsh, tcsh and fish"},
    {"help", "", "he"},
    {"version", "", "vers"},
    // Accepted.
    {"monitor-interval", "0.1", "mon", "x", kSeconds0, {}, true},
    {"start-method",
     "fork",
     "start",
     "clone",
     "the values are spawn, fork and forkserver",
     {},
     true},
    {"logs-specs",
     "default",
     "logs",
     "mine",
     "torchrun's plug-ins are Python and cannot run here; the only value is default",
     {},
     true},
};

// An empty value of these, written out, is their default; torchrun takes it so.
inline const std::set<std::string> kEmptyIsDefault{"rdzv-endpoint",
                                                   "rdzv-id",
                                                   "rdzv-conf",
                                                   "local-addr",
                                                   "log-dir",
                                                   "duplicate-stdout-filters",
                                                   "local-ranks-filter",
                                                   "ranks-filter",
                                                   "duplicate-stderr-filters",
                                                   "log-line-prefix-template"};
// Of these it is a value of its own.
inline const std::set<std::string> kEmptyIsItself{"role"};

}  // namespace ddp::flags
