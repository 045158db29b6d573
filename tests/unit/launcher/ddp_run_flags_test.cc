#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "launcher/flags/flag_table.h"
#include "tests/unit/launcher/ddp_run_flag_rows.h"
#include "tests/unit/launcher/ddp_run_lines.h"

namespace ddp::flags {
namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Flags, DefaultsAreTorchruns) {
  const Options options = options_of({"train.py"});
  EXPECT_EQ(options.spec.rules.min_nodes, 1);
  EXPECT_EQ(options.spec.rules.max_nodes, 1);
  EXPECT_EQ(options.nproc.kind, ProcessCount::Kind::kNumber);
  EXPECT_EQ(options.nproc.number, 1);
  EXPECT_FALSE(options.endpoint);
  EXPECT_FALSE(options.job_id);
  EXPECT_FALSE(options.is_host);
  EXPECT_EQ(options.spec.node_rank, -1);
  EXPECT_EQ(options.spec.rules.max_restarts, 0);
  EXPECT_EQ(options.spec.rules.join_timeout_ms, 600'000);
  EXPECT_EQ(options.spec.rules.last_call_ms, 30'000);
  EXPECT_EQ(options.spec.rules.stop_timeout_ms, 30'000);
  EXPECT_EQ(options.spec.coordinator_timeout_ms, 60'000);
  EXPECT_FALSE(options.spec.rules.restart_on_start_failure);
  EXPECT_EQ(options.spec.rules.max_no_progress, 3);
  EXPECT_EQ(options.spec.rules.scale_up_ms, 60'000);
  EXPECT_EQ(options.spec.progress_timeout_ms, 0);
  EXPECT_EQ(options.spec.standby, 0);
  EXPECT_EQ(options.spec.role, "default");
  EXPECT_EQ(options.log_dir, "");
  EXPECT_EQ(options.python, "python3");
  EXPECT_EQ(options.spec.program, "train.py");
  EXPECT_TRUE(options.arguments.empty());
  EXPECT_TRUE(options.warnings.empty());
}

Arguments every_flag() {
  return {"--nnodes",
          "2:4",
          "--nproc-per-node",
          "8",
          "--rdzv-endpoint",
          "node0:1234",
          "--rdzv-id",
          "job7",
          "--rdzv-backend",
          "c10d",
          "--node-rank",
          "3",
          "--local-addr",
          "10.0.0.7",
          "--max-restarts",
          "5",
          "--join-timeout",
          "1.5",
          "--shutdown-timeout",
          "0",
          "--coordinator-timeout",
          "7",
          "--restart-on-start-failure",
          "--max-no-progress",
          "9",
          "--scale-up-timeout",
          "4",
          "--last-call",
          "0.25",
          "--progress-timeout",
          "2.5",
          "--standby",
          "2",
          "--log-dir",
          "logs",
          "--role",
          "trainer",
          "--monitor-interval",
          "0.1",
          "--start-method",
          "fork",
          "--redirects",
          "0",
          "-t",
          "0",
          "-m",
          "pkg.train"};
}

TEST(Flags, EveryFlagReachesItsOption) {
  const Options options = options_of(every_flag());
  EXPECT_EQ(options.spec.rules.min_nodes, 2);
  EXPECT_EQ(options.spec.rules.max_nodes, 4);
  EXPECT_EQ(options.nproc.number, 8);
  ASSERT_TRUE(options.endpoint);
  EXPECT_EQ(options.endpoint->host, "node0");
  EXPECT_EQ(options.endpoint->port, 1234);
  EXPECT_EQ(options.endpoint_flag, "--rdzv-endpoint node0:1234");
  EXPECT_EQ(options.job_id, "job7");
  EXPECT_EQ(options.spec.node_rank, 3);
  EXPECT_EQ(options.spec.local_addr, "10.0.0.7");
  EXPECT_EQ(options.spec.rules.max_restarts, 5);
  EXPECT_EQ(options.spec.rules.join_timeout_ms, 1'500);
  EXPECT_EQ(options.spec.rules.stop_timeout_ms, 0);
  EXPECT_EQ(options.spec.coordinator_timeout_ms, 7'000);
  EXPECT_TRUE(options.spec.rules.restart_on_start_failure);
  EXPECT_EQ(options.spec.rules.max_no_progress, 9);
  EXPECT_EQ(options.spec.rules.scale_up_ms, 4'000);
  EXPECT_EQ(options.spec.rules.last_call_ms, 250);
  EXPECT_EQ(options.spec.progress_timeout_ms, 2'500);
  EXPECT_EQ(options.spec.standby, 2);
  EXPECT_EQ(options.log_dir, "logs");
  EXPECT_EQ(options.spec.role, "trainer");
  EXPECT_TRUE(options.module);
  EXPECT_EQ(options.spec.program, "pkg.train");
}

TEST(Flags, SpellingsMeanTheSame) {
  for (const Arguments& flags :
       std::vector<Arguments>{{"--nproc-per-node", "3"},
                              {"--nproc_per_node", "3"},
                              {"--nproc-per_node=3"},
                              {"--nproc_per_node=3"},
                              {"--nproc", "3"},
                              {"--npr=3"},
                              {"--nproc_per_node=7", "--nproc-per-node", "3"}}) {
    Arguments arguments = flags;
    arguments.push_back("a");
    EXPECT_EQ(options_of(arguments).nproc.number, 3) << testing::PrintToString(flags);
  }
  EXPECT_TRUE(options_of({"--standal", "a"}).standalone);
  // torchrun takes it so, whatever flags of ours begin alike.
  EXPECT_TRUE(options_of({"--stand", "a"}).standalone);
  EXPECT_EQ(options_of({"--max_r", "2", "a"}).spec.rules.max_restarts, 2);
  EXPECT_TRUE(options_of({"--module", "a"}).module);
  EXPECT_TRUE(options_of({"--no_python", "a"}).no_python);
  EXPECT_EQ(options_of({"--node-rank", "-1", "a"}).spec.node_rank, -1);
  EXPECT_TRUE(options_of({"-h"}).help);
  EXPECT_TRUE(options_of({"--help", "--nnodes", "0"}).help);
  EXPECT_TRUE(options_of({"--version"}).version);
}

TEST(Flags, UnderscoresInValuesStay) {
  EXPECT_EQ(options_of({"--rdzv_id=my_job_1", "a"}).job_id, "my_job_1");
  EXPECT_EQ(options_of({"--rdzv_id", "my_job_1", "a"}).job_id, "my_job_1");
}

TEST(Flags, AValueAfterAnEqualsSignMayBeginWithDashes) {
  EXPECT_EQ(options_of({"--rdzv-id=--nnodes", "a"}).job_id, "--nnodes");
  EXPECT_EQ(options_of({"--rdzv_id=--", "--nnodes=1", "a"}).job_id, "--");
  EXPECT_EQ(options_of({"--log-line-prefix-template=--${rank} ", "a"}).spec.output.prefix,
            "--${rank} ");
}

TEST(Flags, WhatFollowsTheProgramBelongsToIt) {
  const Options options =
      options_of({"--standalone", "train.py", "--nnodes", "4:2", "-x", "--", "-m", "a_b", ""});
  EXPECT_EQ(options.spec.program, "train.py");
  EXPECT_THAT(options.arguments, ElementsAre("--nnodes", "4:2", "-x", "--", "-m", "a_b", ""));
  const Options dashes = options_of({"--standalone", "--", "--odd", "--help"});
  EXPECT_EQ(dashes.spec.program, "--odd");
  EXPECT_THAT(dashes.arguments, ElementsAre("--help"));
  // A value that looks like a program does not end the flags.
  EXPECT_EQ(options_of({"--log-dir", "train.py", "real.py"}).spec.program, "real.py");
}

TEST_P(WrongLine, IsRefusedInOneLine) {
  const auto options = parse(GetParam().arguments, GetParam().environment);
  ASSERT_FALSE(options) << testing::PrintToString(GetParam().arguments);
  EXPECT_EQ(options.error().message, GetParam().message);
  EXPECT_EQ(exit_code_of(options.error()), GetParam().exit_code);
  EXPECT_EQ(options.error().message.find('\n'), std::string::npos);
}

TEST(Flags, DevicesSayHowManyWorkersUnlessANumberDoes) {
  EXPECT_EQ(options_of({"--devices", "2,04,GPU-7", "a"}).devices,
            (std::vector<std::string>{"2", "4", "GPU-7"}));
  EXPECT_EQ(options_of({"--devices", "2", "a"}).nproc.kind, ProcessCount::Kind::kAccelerator);
  EXPECT_EQ(options_of({"--devices", "2", "--nproc-per-node", "4", "a"}).nproc.number, 4);
}

TEST(Flags, SignalsHaveNamesAndNumbers) {
  EXPECT_EQ(options_of({"--signals-to-handle", "SIGTERM,int,SigHup,12,TERM", "a"}).spec.signals,
            (std::vector<int>{SIGTERM, SIGINT, SIGHUP, SIGUSR2}));
  EXPECT_EQ(options_of({"--checkpoint-signal", "none", "a"}).spec.checkpoint_signal, 0);
  // One of torchrun's own that is to ask for a checkpoint ends nothing any more.
  const Options hangup = options_of({"--checkpoint-signal", "HUP", "a"});
  EXPECT_EQ(hangup.spec.checkpoint_signal, SIGHUP);
  EXPECT_EQ(hangup.spec.signals, (std::vector<int>{SIGTERM, SIGINT, SIGQUIT}));
  EXPECT_EQ(hangup.spec.signals_to_handle, "SIGTERM,SIGINT,SIGQUIT");
  // Names that no signal has are told; whoever starts processes of his own may know them.
  const Options unknown = options_of({"--signals-to-handle", " TERM ,SIGXYZ,", "a"});
  EXPECT_EQ(unknown.spec.signals, (std::vector<int>{SIGTERM}));
  EXPECT_EQ(unknown.spec.signals_to_handle, " TERM ,SIGXYZ,");
  EXPECT_THAT(
      unknown.warnings,
      testing::ElementsAre(
          "--signals-to-handle  TERM ,SIGXYZ,: there is no signal 'SIGXYZ', so it is not "
          "handled",
          "--signals-to-handle  TERM ,SIGXYZ,: there is no signal '', so it is not handled"));
  EXPECT_TRUE(options_of({"--signals-to-handle", "SIGXYZ", "a"}).spec.signals.empty());
  // As in torchrun: what is named ends the workers.
  const Options ending = options_of({"--signals-to-handle", "SIGTERM,SIGUSR1", "a"});
  EXPECT_EQ(ending.spec.checkpoint_signal, 0);
  EXPECT_EQ(ending.spec.signals, (std::vector<int>{SIGTERM, SIGUSR1}));
}

INSTANTIATE_TEST_SUITE_P(
    Contradictions, WrongLine,
    testing::Values(
        Wrong{{"--signals-to-handle", "TERM,USR2", "--checkpoint-signal", "12", "a"},
              64,
              "--checkpoint-signal 12: contradicts --signals-to-handle TERM,USR2: a signal either "
              "asks for a checkpoint or ends the workers; leave SIGUSR2 out of one of them"},
        Wrong{{"--signals-to-handle", "KILL", "a"},
              64,
              "--signals-to-handle KILL: no program can handle 'KILL'; choose another signal"},
        Wrong{{"--checkpoint-signal", "65", "a"},
              64,
              "--checkpoint-signal 65: '65' is not a signal; write a name or a number, for example "
              "USR1, SIGUSR1 or 10"},
        Wrong{{"--checkpoint-signal", "CHLD", "a"},
              64,
              "--checkpoint-signal CHLD: 'CHLD' comes whenever a child process ends; choose "
              "another signal"},
        Wrong{{"--devices", "1,1", "a"},
              64,
              "--devices 1,1: device 1 is named twice; name each once"},
        Wrong{{"--devices", "x", "a"},
              64,
              "--devices x: 'x' is not a CUDA device; write numbers, for example 2,4,7"},
        Wrong{{"--virtual-local-rank", "--standby", "1", "a"},
              64,
              "--virtual-local-rank: contradicts --standby, whose workers have no device of their "
              "own before they take a place; leave one of them out"},
        Wrong{{"--event-log-handler", "json:", "a"},
              64,
              "--event-log-handler json:: the values are null, console and json:FILE, for example "
              "json:events.json"},
        Wrong{{"--rdzv-conf", "store_type=file", "a"},
              64,
              "--rdzv-conf store_type=file: store_type=file: the values are tcp and, with "
              "--rdzv-backend "
              "c10d, file"},
        Wrong{{"--rdzv-conf", "rank=-1", "a"},
              64,
              "--rdzv-conf rank=-1: rank=-1 is not a whole number from 0 to 999999"},
        Wrong{{"--rdzv-conf", "rank=1", "a"},
              64,
              "--rdzv-conf rank=1: ranks of 1 nodes go from 0 to 0"}));

const char* const kNodesForm = "not a number of nodes; write N or MIN:MAX, for example 2 or 2:4";

INSTANTIATE_TEST_SUITE_P(
    Usage, WrongLine,
    testing::Values(
        Wrong{{"--nnode5", "2", "a"},
              2,
              "--nnode5: there is no such flag; --nnodes is the nearest, --help lists them all"},
        Wrong{{"--nproc_per_nod", "2", "--max-restart5", "a"},
              2,
              "--max-restart5: there is no such flag; --max-restarts is the nearest, --help lists "
              "them all"},
        Wrong{{"--qqqqqqqqqqqqqq", "a"},
              2,
              "--qqqqqqqqqqqqqq: there is no such flag; --help lists them all"},
        Wrong{{"-np", "2", "a"},
              2,
              "-np: there is no such flag; write --nproc-per-node N, --help lists them all"},
        Wrong{{"--nprocs", "2", "a"},
              2,
              "--nprocs: there is no such flag; write --nproc-per-node N, --help lists them all"},
        Wrong{{"--nodes=2", "a"},
              2,
              "--nodes=2: there is no such flag; write --nnodes N, --help lists them all"},
        Wrong{{"-m"},
              2,
              "--module: the module is missing; write for example: ddp-run -m package.train"},
        Wrong{{"-y", "a"}, 2, "-y: there is no such flag; --help lists them all"},
        Wrong{{"--rdzv", "a"},
              2,
              "--rdzv: could be --rdzv-endpoint, --rdzv-id, --rdzv-backend, --rdzv-conf, "
              "--rdzv-replicas, --rdzv-token-file; write "
              "more of the name"},
        Wrong{{"--standalone=1", "a"},
              2,
              "--standalone: takes no value; leave out what follows the ="},
        Wrong{{"--nnodes"}, 2, "--nnodes: the value is missing; write --nnodes N|MIN:MAX"},
        Wrong{{"--nnodes", "--standalone", "a"},
              2,
              "--nnodes: the value is missing; write --nnodes N|MIN:MAX"},
        Wrong{{},
              2,
              "no program to run; write for example: ddp-run --standalone --nproc-per-node 2 "
              "train.py. --help "
              "lists all flags"},
        Wrong{{"--standalone", ""}, 2, "the program's name is empty; --help lists all flags"}));

INSTANTIATE_TEST_SUITE_P(
    Size, WrongLine,
    testing::Values(
        Wrong{{"--nnodes", "4:2", "a"},
              64,
              "--nnodes 4:2: the minimum 4 is larger than the maximum 2; write MIN:MAX, for "
              "example 2:4"},
        Wrong{{"--nnodes=0", "a"}, 64, std::string("--nnodes 0: ") + kNodesForm},
        Wrong{{"--nnodes", "1:2:3", "a"}, 64, std::string("--nnodes 1:2:3: ") + kNodesForm},
        Wrong{{"--nnodes", "two", "a"}, 64, std::string("--nnodes two: ") + kNodesForm},
        Wrong{{"--nnodes", "2:", "a"}, 64, std::string("--nnodes 2:: ") + kNodesForm},
        Wrong{{"--nproc-per-node", "0", "a"},
              64,
              "--nproc-per-node 0: neither a number of workers from 1 to 4096 nor auto, cpu, gpu, "
              "xpu, hpu or npu; for devices of another kind, write their number; "
              "--devices chooses devices, for example 2,4"},
        Wrong{{"--nproc-per-node", "2x", "a"},
              64,
              "--nproc-per-node 2x: neither a number of workers from 1 to 4096 nor auto, cpu, gpu, "
              "xpu, hpu or npu; for devices of another kind, write their number; "
              "--devices chooses devices, for example 2,4"},
        Wrong{{"--nproc-per-node", "xpu", "--devices", "2", "a"},
              64,
              "--nproc-per-node xpu: contradicts --devices 2, which names CUDA devices; leave one "
              "of them out"},
        Wrong{{"--nnodes", "2", "--standalone", "a"},
              64,
              "--nnodes 2: contradicts --standalone, which is one node; leave one of them out"}));

INSTANTIATE_TEST_SUITE_P(
    Values, WrongLine,
    testing::Values(
        Wrong{{"--node-rank", "x", "a"}, 64, "--node-rank x: not a whole number from -1 to 999999"},
        Wrong{{"--max-restarts", "-1", "a"},
              64,
              "--max-restarts -1: not a whole number from 0 to 1000000"},
        Wrong{{"--join-timeout", "0", "a"},
              64,
              "--join-timeout 0: not a number of seconds above 0; write for example 60 or 0.5"},
        Wrong{{"--shutdown-timeout", "5m", "a"},
              64,
              "--shutdown-timeout 5m: not a number of seconds from 0; write for example 60 or 0.5"},
        Wrong{{"--coordinator-timeout", "nan", "a"},
              64,
              "--coordinator-timeout nan: not a number of seconds from 0; write for example 60 or "
              "0.5"},
        Wrong{{"--monitor-interval", "x", "a"},
              64,
              "--monitor-interval x: not a number of seconds from 0; write for example 60 or 0.5"},
        Wrong{{"--start-method", "clone", "a"},
              64,
              "--start-method clone: the values are spawn, fork and forkserver"},
        Wrong{{"--nnodes=", "a"}, 2, "--nnodes: the value is missing; write --nnodes N|MIN:MAX"},
        Wrong{{"--nnod=", "a"}, 2, "--nnodes: the value is missing; write --nnodes N|MIN:MAX"},
        Wrong{{"--standalone=", "a"},
              2,
              "--standalone: takes no value; leave out what follows the ="},
        Wrong{{"--nnode-s=", "a"},
              2,
              "--nnode-s: there is no such flag; --nnodes is the nearest, --help lists them all"},
        Wrong{{"-m", "--no-python", "a"},
              64,
              "--module with --no-python: a module needs Python; leave one of them out"}));

TEST(Help, ListsEveryFlagWithinTheTerminal) {
  const std::string text = help_text();
  for (const Flag& flag : all_flags()) {
    std::string left = "--" + std::string(flag.name);
    if (flag.takes_value()) left += " " + std::string(flag.placeholder);
    // help2man finds the description by what precedes it.
    EXPECT_THAT(text, AnyOf(HasSubstr(left + "  "), HasSubstr(left + "\n")));
  }
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = text.find('\n', begin);
    ASSERT_NE(end, std::string::npos);
    EXPECT_LE(end - begin, 120U) << text.substr(begin, end - begin);
    begin = end + 1;
  }
}

// Each example is a line that is understood, as it stands in the text.
// As a shell takes them: blanks between double quotes belong to a word.
Arguments words_of(std::string_view line) {
  Arguments words(1);
  bool is_quoted = false;
  for (const char c : line) {
    if (c == '"') {
      is_quoted = !is_quoted;
    } else if (c == ' ' && !is_quoted) {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

TEST(Help, ExamplesWork) {
  for (const Flag& flag : all_flags()) {
    if (flag.example.empty()) continue;
    Arguments arguments = words_of(flag.example);
    const bool whole_line = arguments.front() == "ddp-run";
    if (whole_line) arguments.erase(arguments.begin());
    if (!whole_line) arguments.push_back("train.py");
    // A flag about several nodes makes sense only with them.
    if (flag.name == "nnodes" || flag.name == "node-rank") {
      arguments.insert(arguments.begin(), {"--nnodes", "2:4", "--rdzv-endpoint", "node0"});
    }
    if (flag.name == "launch-agent" || flag.name == "export") {
      arguments.insert(arguments.begin(), {"--hosts", "node0"});
    }
    if (flag.name == "hostfile") arguments[1] = host_file();
    const auto options = parse(arguments);
    EXPECT_TRUE(options) << flag.example << ": " << (options ? "" : options.error().message);
  }
}

// JobRules has the defaults; --help says them.
TEST(FlagTable, HelpSaysTheDefaultsOfTheRules) {
  const config::JobRules rules;
  const std::map<std::string_view, std::int64_t> defaults{
      {"max-restarts", rules.max_restarts},
      {"max-no-progress", rules.max_no_progress},
      {"max-node-failures", rules.max_node_failures},
      {"last-call", rules.last_call_ms / 1'000},
      {"scale-up-timeout", rules.scale_up_ms / 1'000},
      {"join-timeout", rules.join_timeout_ms / 1'000},
      {"shutdown-timeout", rules.stop_timeout_ms / 1'000},
      {"lease", rules.lease_ms / 1'000}};
  std::size_t found = 0;
  for (const Flag& flag : all_flags()) {
    const auto expected = defaults.find(flag.name);
    if (expected == defaults.end()) continue;
    ++found;
    EXPECT_THAT(std::string(flag.help),
                testing::ContainsRegex(fmt::format("\\(default {}[,;)]", expected->second)))
        << flag.name;
  }
  EXPECT_EQ(found, defaults.size());
}

}  // namespace
}  // namespace ddp::flags
