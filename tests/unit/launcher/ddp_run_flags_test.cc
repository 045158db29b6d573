#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/ddp_run/exit_error.h"
#include "launcher/ddp_run/flag_table.h"
#include "launcher/ddp_run/flags.h"

namespace ddp::run {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Arguments = std::vector<std::string>;
using Environment = std::map<std::string, std::string>;

Result<Options> parse(const Arguments& arguments, const Environment& environment = {}) {
  return parse_flags(arguments, [&environment](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

// The options of a line that is right.
Options options_of(Arguments arguments, const Environment& environment = {}) {
  auto options = parse(arguments, environment);
  EXPECT_TRUE(options) << (options ? "" : options.error().message);
  return options ? *options : Options{};
}

TEST(Flags, EtcdsEndpointsAndKeys) {
  const Options options = options_of(
      {"--rdzv-backend", "etcd", "--rdzv-endpoint", "e0,10.0.0.1:99,[fd00::1]", "--rdzv-id", "j",
       "--rdzv-conf", "protocol=https,cacert=a,cert=b,key=c,etcd_prefix=/p,join_timeout=5", "a"});
  ASSERT_TRUE(options.etcd);
  EXPECT_THAT(etcd_urls(*options.etcd),
              ElementsAre("https://e0:2379", "https://10.0.0.1:99", "https://[fd00::1]:2379"));
  EXPECT_EQ(options.etcd->ca, "a");
  EXPECT_EQ(options.etcd->certificate, "b");
  EXPECT_EQ(options.etcd->key, "c");
  EXPECT_EQ(options.etcd->prefix, "/p");
  EXPECT_EQ(options.join_timeout_ms, 5'000);
  EXPECT_TRUE(options.warnings.empty());

  const Options older = options_of({"--rdzv-backend", "etcd-v2", "--rdzv-endpoint", "e",
                                    "--rdzv-id", "j", "--rdzv-conf", "is_host=1", "a"});
  EXPECT_TRUE(older.etcd);
  EXPECT_THAT(older.warnings, ElementsAre(HasSubstr("version 3"), HasSubstr("is_host")));
  // --standalone overrides whatever names a rendezvous.
  EXPECT_FALSE(options_of({"--standalone", "--rdzv-backend", "etcd", "a"}).etcd);
}

TEST(Flags, DefaultsAreTorchruns) {
  const Options options = options_of({"train.py"});
  EXPECT_EQ(options.min_nodes, 1);
  EXPECT_EQ(options.max_nodes, 1);
  EXPECT_EQ(options.nproc.kind, ProcessCount::Kind::kNumber);
  EXPECT_EQ(options.nproc.number, 1);
  EXPECT_FALSE(options.endpoint);
  EXPECT_FALSE(options.job_id);
  EXPECT_FALSE(options.is_host);
  EXPECT_EQ(options.node_rank, -1);
  EXPECT_EQ(options.max_restarts, 0);
  EXPECT_EQ(options.join_timeout_ms, 600'000);
  EXPECT_EQ(options.last_call_ms, 30'000);
  EXPECT_EQ(options.stop_timeout_ms, 30'000);
  EXPECT_EQ(options.coordinator_timeout_ms, 60'000);
  EXPECT_FALSE(options.restart_on_start_failure);
  EXPECT_EQ(options.max_no_progress, 3);
  EXPECT_EQ(options.scale_up_ms, 60'000);
  EXPECT_EQ(options.progress_timeout_ms, 0);
  EXPECT_EQ(options.standby, 0);
  EXPECT_EQ(options.role, "default");
  EXPECT_EQ(options.log_dir, "");
  EXPECT_EQ(options.python, "python3");
  EXPECT_EQ(options.program, "train.py");
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
  EXPECT_EQ(options.min_nodes, 2);
  EXPECT_EQ(options.max_nodes, 4);
  EXPECT_EQ(options.nproc.number, 8);
  ASSERT_TRUE(options.endpoint);
  EXPECT_EQ(options.endpoint->host, "node0");
  EXPECT_EQ(options.endpoint->port, 1234);
  EXPECT_EQ(options.endpoint_flag, "--rdzv-endpoint node0:1234");
  EXPECT_EQ(options.job_id, "job7");
  EXPECT_EQ(options.node_rank, 3);
  EXPECT_EQ(options.local_addr, "10.0.0.7");
  EXPECT_EQ(options.max_restarts, 5);
  EXPECT_EQ(options.join_timeout_ms, 1'500);
  EXPECT_EQ(options.stop_timeout_ms, 0);
  EXPECT_EQ(options.coordinator_timeout_ms, 7'000);
  EXPECT_TRUE(options.restart_on_start_failure);
  EXPECT_EQ(options.max_no_progress, 9);
  EXPECT_EQ(options.scale_up_ms, 4'000);
  EXPECT_EQ(options.last_call_ms, 250);
  EXPECT_EQ(options.progress_timeout_ms, 2'500);
  EXPECT_EQ(options.standby, 2);
  EXPECT_EQ(options.log_dir, "logs");
  EXPECT_EQ(options.role, "trainer");
  EXPECT_TRUE(options.module);
  EXPECT_EQ(options.program, "pkg.train");
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
  EXPECT_EQ(options_of({"--max_r", "2", "a"}).max_restarts, 2);
  EXPECT_TRUE(options_of({"--module", "a"}).module);
  EXPECT_TRUE(options_of({"--no_python", "a"}).no_python);
  EXPECT_EQ(options_of({"--node-rank", "-1", "a"}).node_rank, -1);
  EXPECT_TRUE(options_of({"-h"}).help);
  EXPECT_TRUE(options_of({"--help", "--nnodes", "0"}).help);
  EXPECT_TRUE(options_of({"--version"}).version);
}

TEST(Flags, NodesOfASlurmStepKeepItsOrder) {
  const std::map<std::string, std::string> step{
      {"SLURM_NODEID", "2"}, {"SLURM_STEP_NUM_NODES", "3"}, {"SLURM_STEP_NUM_TASKS", "3"}};
  const Arguments flags{"--nnodes", "3", "--rdzv-endpoint", "n:1", "a"};
  EXPECT_EQ(options_of(flags, step).node_rank, 2);
  EXPECT_TRUE(options_of(flags, step).node_rank_is_slurms);
  Arguments own = flags;
  own.insert(own.begin(), {"--node-rank", "1"});
  EXPECT_EQ(options_of(own, step).node_rank, 1);
  EXPECT_FALSE(options_of(own, step).node_rank_is_slurms);
  // A spare, a job of one node, several tasks a node.
  EXPECT_EQ(options_of({"--nnodes", "2", "--rdzv-endpoint", "n:1", "a"}, step).node_rank, -1);
  EXPECT_EQ(options_of({"a"}, step).node_rank, -1);
  auto crowded = step;
  crowded["SLURM_STEP_NUM_TASKS"] = "6";
  EXPECT_EQ(options_of(flags, crowded).node_rank, -1);
}

TEST(Flags, UnderscoresInValuesStay) {
  EXPECT_EQ(options_of({"--rdzv_id=my_job_1", "a"}).job_id, "my_job_1");
  EXPECT_EQ(options_of({"--rdzv_id", "my_job_1", "a"}).job_id, "my_job_1");
}

TEST(Flags, WhatFollowsTheProgramBelongsToIt) {
  const Options options =
      options_of({"--standalone", "train.py", "--nnodes", "4:2", "-x", "--", "-m", "a_b", ""});
  EXPECT_EQ(options.program, "train.py");
  EXPECT_THAT(options.arguments, ElementsAre("--nnodes", "4:2", "-x", "--", "-m", "a_b", ""));
  const Options dashes = options_of({"--standalone", "--", "--odd", "--help"});
  EXPECT_EQ(dashes.program, "--odd");
  EXPECT_THAT(dashes.arguments, ElementsAre("--help"));
  // A value that looks like a program does not end the flags.
  EXPECT_EQ(options_of({"--log-dir", "train.py", "real.py"}).program, "real.py");
}

TEST(Flags, EnvironmentFillsInWhatTheLineLacks) {
  const Environment environment{
      {"PET_NNODES", "3"},  {"PET_NPROC_PER_NODE", "gpu"}, {"PET_RDZV_ENDPOINT", "h:99"},
      {"PET_RDZV_ID", "x"}, {"PET_MAX_RESTARTS", "4"},     {"PET_NO_PYTHON", "1"},
      {"PET_MODULE", "0"},  {"PET_JOIN_TIMEOUT", "9"},     {"PYTHON_EXEC", "/opt/python"}};
  const Options options = options_of({"--nnodes=2", "train"}, environment);
  EXPECT_EQ(options.max_nodes, 2);
  EXPECT_EQ(options.nproc.kind, ProcessCount::Kind::kGpu);
  EXPECT_EQ(options.endpoint->host, "h");
  EXPECT_EQ(options.endpoint->port, 99);
  EXPECT_EQ(options.endpoint_flag, "PET_RDZV_ENDPOINT=h:99");
  EXPECT_EQ(options.job_id, "x");
  EXPECT_EQ(options.max_restarts, 4);
  EXPECT_TRUE(options.no_python);
  EXPECT_FALSE(options.module);
  EXPECT_EQ(options.join_timeout_ms, 9'000);
  EXPECT_EQ(options.python, "/opt/python");
  EXPECT_TRUE(options_of({"a"}, {{"PET_STANDALONE", "1"}}).standalone);
  EXPECT_EQ(options_of({"a"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "5"}}).stop_timeout_ms, 5'000);
  EXPECT_EQ(options_of({"--shutdown-timeout", "6", "a"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "5"}})
                .stop_timeout_ms,
            6'000);
}

TEST(Flags, Endpoints) {
  struct Case {
    Arguments flags;
    std::string host;
    int port;
  };
  for (const Case& c : std::vector<Case>{
           {{"--rdzv-endpoint", "node0"}, "node0", 29400},
           {{"--rdzv-endpoint", "node0:0"}, "node0", 0},
           {{"--rdzv-endpoint", "10.1.2.3:5"}, "10.1.2.3", 5},
           {{"--rdzv-endpoint", "[fd00::1]:5"}, "fd00::1", 5},
           {{"--rdzv-endpoint", "[fd00::1]"}, "fd00::1", 29400},
           {{"--rdzv-endpoint", "::1"}, "::1", 29400},
           {{"--master-addr", "m"}, "m", 29500},
           {{"--master-addr", "m", "--master-port", "7"}, "m", 7},
           {{"--master-addr", "fd00::1", "--master-port", "7"}, "fd00::1", 7},
           {{"--master-port", "7"}, "127.0.0.1", 7},
           {{"--rdzv-endpoint", "e:1", "--master-addr", "m", "--master-port", "7"}, "e", 1},
           {{"--rdzv-backend", "static", "--master-addr", "m"}, "m", 29500},
       }) {
    Arguments arguments = c.flags;
    arguments.push_back("a");
    const Options options = options_of(arguments);
    ASSERT_TRUE(options.endpoint) << testing::PrintToString(c.flags);
    EXPECT_EQ(options.endpoint->host, c.host) << testing::PrintToString(c.flags);
    EXPECT_EQ(options.endpoint->port, c.port) << testing::PrintToString(c.flags);
  }
  EXPECT_FALSE(options_of({"--standalone", "--rdzv-endpoint", "node0", "a"}).endpoint);
}

TEST(Flags, RendezvousConf) {
  const Options options = options_of(
      {"--rdzv-conf", "join_timeout=1,last_call_timeout=0,timeout=900,is_host=true", "a"});
  EXPECT_EQ(options.join_timeout_ms, 1'000);
  EXPECT_EQ(options.last_call_ms, 0);
  EXPECT_EQ(options.is_host, true);
  EXPECT_EQ(options_of({"--rdzv-conf", "timeout=2", "a"}).join_timeout_ms, 2'000);
  EXPECT_EQ(
      options_of({"--rdzv-conf", "join_timeout=2", "--join-timeout", "3", "a"}).join_timeout_ms,
      3'000);
  // The later of two replaces the earlier, as a whole.
  EXPECT_EQ(options_of({"--rdzv-conf", "join_timeout=2", "--rdzv-conf", "is_host=0", "a"})
                .join_timeout_ms,
            600'000);
  EXPECT_EQ(options_of({"--rdzv-conf", "is_host=0", "a"}).is_host, false);
  const Options unknown = options_of({"--rdzv-conf", "read_timeout=5,join_timeout=4", "a"});
  EXPECT_EQ(unknown.join_timeout_ms, 4'000);
  ASSERT_EQ(unknown.warnings.size(), 1U);
  EXPECT_THAT(unknown.warnings[0], HasSubstr("the key read_timeout has no effect"));
}

struct Wrong {
  Arguments arguments;
  int exit_code;
  std::string message;
  Environment environment = {};
};

class WrongLine : public testing::TestWithParam<Wrong> {};

TEST_P(WrongLine, IsRefusedInOneLine) {
  const auto options = parse(GetParam().arguments, GetParam().environment);
  ASSERT_FALSE(options) << testing::PrintToString(GetParam().arguments);
  EXPECT_EQ(options.error().message, GetParam().message);
  EXPECT_EQ(exit_code_of(options.error()), GetParam().exit_code);
  EXPECT_EQ(options.error().message.find('\n'), std::string::npos);
}

const char* const kEndpointForm =
    "; write HOST or HOST:PORT, for example node0:29400 or [fd00::1]:29400";
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
        Wrong{{"-x", "a"}, 2, "-x: there is no such flag; --help lists them all"},
        Wrong{{"--rdzv", "a"},
              2,
              "--rdzv: could be --rdzv-endpoint, --rdzv-id, --rdzv-backend, --rdzv-conf; write "
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
        Wrong{{"a"}, 64, std::string("PET_NNODES=x: ") + kNodesForm, {{"PET_NNODES", "x"}}},
        Wrong{
            {"--nproc-per-node", "0", "a"},
            64,
            "--nproc-per-node 0: neither a number of workers from 1 to 4096 nor auto, cpu or gpu"},
        Wrong{
            {"--nproc-per-node", "2x", "a"},
            64,
            "--nproc-per-node 2x: neither a number of workers from 1 to 4096 nor auto, cpu or gpu"},
        Wrong{{"--nnodes", "2", "a"},
              64,
              "--nnodes 2: --rdzv-endpoint is missing; all nodes name the same one, for example "
              "--rdzv-endpoint "
              "node0:29400"},
        Wrong{{"--nnodes", "2", "--master-port", "29500", "a"},
              64,
              "--nnodes 2: --rdzv-endpoint is missing; all nodes name the same one, for example "
              "--rdzv-endpoint "
              "node0:29400"},
        Wrong{{"--nnodes", "2", "--standalone", "a"},
              64,
              "--nnodes 2: contradicts --standalone, which is one node; leave one of them out"},
        Wrong{{"--nnodes", "2", "--rdzv-endpoint", "h:0", "a"},
              64,
              "--rdzv-endpoint h:0: port 0 cannot be found by other nodes; write a port, for "
              "example h:29400"},
        Wrong{{"--nnodes", "2", "--rdzv-endpoint", "h", "--node-rank", "2", "a"},
              64,
              "--node-rank 2: ranks of 2 nodes go from 0 to 1"}));

INSTANTIATE_TEST_SUITE_P(
    Values, WrongLine,
    testing::Values(
        Wrong{{"--rdzv-endpoint", ":29400", "a"},
              64,
              std::string("--rdzv-endpoint :29400: the host is missing") + kEndpointForm},
        Wrong{{"--rdzv-endpoint", "h:70000", "a"},
              64,
              std::string("--rdzv-endpoint h:70000: the port is not a number from 0 to 65535") +
                  kEndpointForm},
        Wrong{{"--rdzv-endpoint", "h:", "a"},
              64,
              std::string("--rdzv-endpoint h:: the port is not a number from 0 to 65535") +
                  kEndpointForm},
        Wrong{{"--rdzv-endpoint", "[::1", "a"},
              64,
              std::string("--rdzv-endpoint [::1: the bracket is not closed") + kEndpointForm},
        Wrong{{"--rdzv-endpoint", "[h]:1", "a"},
              64,
              std::string("--rdzv-endpoint [h]:1: 'h' is no IPv6 address") + kEndpointForm},
        Wrong{{"--rdzv-endpoint", "tcp://h:1", "a"},
              64,
              std::string("--rdzv-endpoint tcp://h:1: the port is not a number from 0 to 65535") +
                  kEndpointForm},
        Wrong{{"--rdzv-endpoint", "h/x", "a"},
              64,
              std::string("--rdzv-endpoint h/x: 'h/x' is no host name") + kEndpointForm},
        Wrong{{"--rdzv-backend", "zeus", "a"},
              64,
              "--rdzv-backend zeus: there are c10d and static, which both mean ddp-run's own "
              "rendezvous, and etcd"},
        Wrong{
            {"--rdzv-backend", "etcd", "--rdzv-id", "j", "a"},
            64,
            "--rdzv-backend etcd: --rdzv-endpoint is missing; name the cluster's client ports, for "
            "example --rdzv-endpoint etcd0:2379,etcd1:2379"},
        Wrong{{"--rdzv-backend", "etcd", "--rdzv-endpoint", "e", "a"},
              64,
              "--rdzv-backend etcd: --rdzv-id is missing; jobs that share a cluster are told apart "
              "by "
              "it, for example --rdzv-id mnist-7"},
        Wrong{{"--rdzv-backend", "etcd", "--rdzv-endpoint", "e,f:0", "--rdzv-id", "j", "a"},
              64,
              "--rdzv-endpoint e,f:0: 'f:0' has port 0; etcd's client port is usually 2379"},
        Wrong{{"--rdzv-backend", "etcd", "--rdzv-endpoint", "e", "--rdzv-id", "j", "--rdzv-conf",
               "protocol=ftp", "a"},
              64,
              "--rdzv-conf protocol=ftp: protocol=ftp is neither http nor https"},
        Wrong{{"--rdzv-id", "", "a"},
              64,
              "--rdzv-id : a job's name has 1 to 128 characters and no /"},
        Wrong{{"--rdzv-id", "a/b", "a"},
              64,
              "--rdzv-id a/b: a job's name has 1 to 128 characters and no /"},
        Wrong{{"--rdzv-conf", "join_timeout", "a"},
              64,
              "--rdzv-conf join_timeout: 'join_timeout' is not KEY=VALUE; write for example "
              "join_timeout=60,is_host=true"},
        Wrong{{"--rdzv-conf", "is_host=maybe", "a"},
              64,
              "--rdzv-conf is_host=maybe: is_host=maybe is neither true nor false"},
        Wrong{{"--rdzv-conf", "join_timeout=0", "a"},
              64,
              "--rdzv-conf join_timeout=0: join_timeout=0 is not a number of seconds above 0; "
              "write for example 60 "
              "or 0.5"},
        Wrong{{"--node-rank", "x", "a"}, 64, "--node-rank x: not a whole number from -1 to 999999"},
        Wrong{{"--master-addr", "h:1", "a"},
              64,
              "--master-addr h:1: not a host name or address; the port goes into --master-port"},
        Wrong{{"--master-port", "99999", "a"},
              64,
              "--master-port 99999: not a whole number from 0 to 65535"},
        Wrong{{"--local-addr", "", "a"},
              64,
              "--local-addr : the address is empty; write for example 10.0.0.7"},
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
              "--start-method clone: there are spawn, fork and forkserver"},
        Wrong{{"-r", "3", "a"},
              64,
              "--redirects 3: not supported; --log-dir DIR writes every worker's output to files "
              "and leaves it on "
              "the console"},
        Wrong{{"--tee", "0:1", "a"},
              64,
              "--tee 0:1: not supported; --log-dir DIR writes every worker's output to files and "
              "leaves it on the "
              "console"},
        Wrong{{"--log-dir", "", "a"},
              64,
              "--log-dir : the folder is empty; write for example --log-dir logs"},
        Wrong{{"--role", "", "a"}, 64, "--role : the name is empty"},
        Wrong{{"-m", "--no-python", "a"},
              64,
              "--module with --no-python: a module needs Python; leave one of them out"},
        Wrong{{"a"}, 64, "PET_STANDALONE=yes: neither 0 nor 1", {{"PET_STANDALONE", "yes"}}},
        Wrong{{"a"},
              64,
              "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=x: not a number of seconds from 0; write for example "
              "60 or 0.5",
              {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "x"}}}));

TEST(Help, ListsEveryFlagWithinTheTerminal) {
  const std::string text = help_text();
  for (const Flag& flag : all_flags()) {
    EXPECT_THAT(text, HasSubstr("--" + std::string(flag.name)));
  }
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = text.find('\n', begin);
    ASSERT_NE(end, std::string::npos);
    EXPECT_LE(end - begin, 120U) << text.substr(begin, end - begin);
    begin = end + 1;
  }
}

// Each example is a line that is understood, as it stands in the text.
TEST(Help, ExamplesWork) {
  for (const Flag& flag : all_flags()) {
    if (flag.example.empty()) continue;
    Arguments arguments;
    std::string_view rest = flag.example;
    while (!rest.empty()) {
      arguments.emplace_back(rest.substr(0, rest.find(' ')));
      rest.remove_prefix(std::min(rest.size(), arguments.back().size() + 1));
    }
    const bool whole_line = arguments.front() == "ddp-run";
    if (whole_line) arguments.erase(arguments.begin());
    if (!whole_line) arguments.push_back("train.py");
    // A flag about several nodes makes sense only with them.
    if (flag.name == "nnodes" || flag.name == "node-rank") {
      arguments.insert(arguments.begin(), {"--nnodes", "2:4", "--rdzv-endpoint", "node0"});
    }
    const auto options = parse(arguments);
    EXPECT_TRUE(options) << flag.example << ": " << (options ? "" : options.error().message);
  }
}

}  // namespace
}  // namespace ddp::run
