// --hosts, --hostfile, --launch-agent and -x, and what is planned for them.
#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_error.h"
#include "launcher/flags/flags.h"
#include "launcher/hosts/hosts_plan.h"
#include "tests/support/temp_dir.h"

namespace ddp::hosts {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;
using Words = std::vector<std::string>;

const char* environment(const char* name) {
  const std::string_view text(name);
  if (text == "HERE") return "it is";
  if (text == "PET_MAX_RESTARTS") return "3";
  return nullptr;
}

Result<flags::Options> parse(const Words& words) { return flags::parse_flags(words, environment); }

TEST(HostFlags, NameHostsAndTheirWorkers) {
  const auto options = parse({"--hosts", "a,b:4", "train.py"}).value();
  ASSERT_EQ(options.host_list.size(), 2u);
  EXPECT_EQ(options.host_list[1], (Host{"b", 4}));
  EXPECT_EQ(options.spec.rules.min_nodes, 2);
  EXPECT_EQ(options.spec.rules.max_nodes, 2);
  EXPECT_TRUE(options.launch_agent.is_default());
}

TEST(HostFlags, AFileAddsToTheList) {
  const test::TempDir folder;
  const std::string file = folder.write("hosts", "b slots=2\nc\n");
  EXPECT_EQ(parse({"--hostfile", file, "x"}).value().host_list.size(), 2u);
  EXPECT_EQ(parse({"--hosts", "a", "--hostfile", file, "x"}).value().host_list.size(), 3u);
}

TEST(HostFlags, MinAndMaxMayBeLess) {
  const auto options = parse({"--hosts", "a,b,c", "--nnodes", "1:2", "x"}).value();
  EXPECT_EQ(options.spec.rules.min_nodes, 1);
  EXPECT_EQ(options.spec.rules.max_nodes, 2);
}

TEST(HostFlags, VariablesAddUp) {
  const auto options =
      parse({"--hosts", "a", "-x", "HERE", "-x", "A=b=c", "--export", "E=", "-x", "GONE", "x"})
          .value();
  EXPECT_THAT(options.exports, ElementsAre(Pair("HERE", "it is"), Pair("A", "b=c"), Pair("E", "")));
  EXPECT_THAT(options.warnings, Contains(HasSubstr("-x GONE: it is not set here")));
}

TEST(HostFlags, NodesGetTheOtherFlagsAndTheProgramAsTheyAre) {
  const auto options = parse({"--hosts", "a,b", "--nnodes=1:2", "--rdzv_id", "j", "--launch-agent",
                              "sh", "-x", "HERE", "--local-addr", "10.0.0.1", "--log-dir", "a b",
                              "--max-no-p", "7", "-m", "mod", "--hosts", "it's"})
                           .value();
  EXPECT_THAT(options.node_arguments,
              ElementsAre("--log-dir=a b", "--max-no-progress=7", "--max-restarts=3", "--module",
                          "--", "mod", "--hosts", "it's"));
  const auto again = parse(options.node_arguments);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->log_dir, "a b");
  EXPECT_EQ(again->spec.rules.max_restarts, 3);
  EXPECT_TRUE(again->module);
  EXPECT_THAT(again->arguments, ElementsAre("--hosts", "it's"));
}

TEST(HostFlags, Errors) {
  const struct {
    Words line;
    const char* error;
  } cases[] = {
      {{"--hosts", "a,a", "x"}, "--hosts a,a: host a is named twice"},
      {{"--hosts", "a,", "x"}, "a host's name is empty"},
      {{"--hostfile", "/no/such/file", "x"},
       "--hostfile /no/such/file: cannot be read: No such file or directory"},
      {{"--hosts", "a", "--standalone", "x"}, "--hosts a: contradicts --standalone"},
      {{"--hosts", "a,b", "--node-rank", "1", "x"}, "the hosts' order gives the ranks"},
      {{"--hosts", "a,b", "--nnodes", "3", "x"}, "--nnodes 3: there are 2 hosts to run on"},
      {{"--launch-agent", "sh", "x"}, "--launch-agent sh: needs --hosts or --hostfile"},
      {{"-x", "HERE", "x"}, "needs --hosts or --hostfile"},
      {{"--hosts", "a", "--launch-agent", "it's", "x"}, "--launch-agent it's: a ' is not closed"},
      {{"--hosts", "a", "-x", "=v", "x"}, "not a variable name"},
  };
  for (const auto& one : cases) {
    const auto options = parse(one.line);
    ASSERT_FALSE(options) << one.error;
    EXPECT_THAT(options.error().message, HasSubstr(one.error));
    EXPECT_EQ(exit_code_of(options.error()), 64) << one.error;
  }
}

machine::Machine machine() {
  machine::Machine made;
  made.host_name = "here";
  made.locate_host = [](const std::string& host) {
    if (host == "here") return machine::HostPlace{true, false, "10.0.0.7"};
    if (host == "127.0.0.1") return machine::HostPlace{true, true, "127.0.0.1"};
    return machine::HostPlace{false, false, host};
  };
  made.source_address = [](const std::string& host) -> std::string {
    // As /etc/hosts has this machine's names on Debian.
    if (host == "here.cluster" || host == "self" || host == "127.0.0.1") return "127.0.0.1";
    return host == "known" ? "10.1.0.7" : "";
  };
  return made;
}

HostsPlan plan(const Words& words) {
  return plan_hosts(parse(words).value(), machine(), "/opt/ddp-run", "/work").value();
}

TEST(HostsPlan, TheRendezvousIsHereAndTheHostsAreToldWhere) {
  HostsPlan made = plan({"--hosts", "u@known:4,alias", "-x", "A=b", "--", "train", "it's"});
  EXPECT_TRUE(made.job.host);
  EXPECT_TRUE(made.order.joins_ours);
  EXPECT_EQ(made.job.bind_address, "");
  EXPECT_EQ(made.address, "10.1.0.7") << "from where the first host is reached";
  EXPECT_THAT(made.order.places, ElementsAre(NodePlace{"u@known", 4, 0}, NodePlace{"alias", 0, 1}));
  EXPECT_THAT(made.order.environment, Contains(Pair("A", "b")));
  EXPECT_EQ(made.order.program, "/opt/ddp-run");
  EXPECT_EQ(made.order.folder, "/work");
  EXPECT_EQ(made.job.spec.job_id.size(), 16u);
  made.job.spec.coordinator_port = 4711;
  set_endpoint(made);
  EXPECT_THAT(made.order.arguments, ElementsAre("--nnodes=2:2", "--rdzv-endpoint=10.1.0.7:4711",
                                                "--rdzv-id=" + made.job.spec.job_id,
                                                "--max-restarts=3", "--", "train", "it's"));
}

TEST(HostsPlan, WhereTheRendezvousIsFound) {
  const struct {
    Words flags;
    const char* address;
    const char* bind;
    bool here;
  } cases[] = {
      {{"--hosts", "localhost,here"}, "127.0.0.1", "127.0.0.1", true},
      {{"--hosts", "here,known"}, "10.1.0.7", "", true},
      {{"--hosts", "here.cluster,alias"}, "10.0.0.7", "", true},
      {{"--hosts", "here.cluster,known"}, "10.1.0.7", "", true},
      {{"--hosts", "self,known"}, "10.1.0.7", "", true},
      {{"--hosts", "127.0.0.1,u@self,here.cluster"}, "127.0.0.1", "127.0.0.1", true},
      {{"--hosts", "alias,known"}, "10.0.0.7", "", true},
      {{"--hosts", "known", "--launch-agent", "sh"}, "10.0.0.7", "", true},
      {{"--hosts", "alias", "--local-addr", "10.9.0.1"}, "10.9.0.1", "", true},
      {{"--hosts", "alias", "--rdzv-endpoint", "here:29500"}, "here", "", true},
      {{"--hosts", "alias", "--rdzv-endpoint", "other:29500"}, "other", "", false},
      {{"--hosts", "alias", "--rdzv-backend", "etcd", "--rdzv-endpoint", "e:2379", "--rdzv-id",
        "j"},
       "",
       "",
       false},
  };
  for (const auto& one : cases) {
    Words words = one.flags;
    words.emplace_back("train");
    const HostsPlan made = plan(words);
    EXPECT_EQ(made.address, one.address) << testing::PrintToString(words);
    EXPECT_EQ(made.job.bind_address, one.bind) << testing::PrintToString(words);
    EXPECT_EQ(made.job.host, one.here) << testing::PrintToString(words);
    EXPECT_EQ(made.order.joins_ours, one.here) << testing::PrintToString(words);
  }
}

TEST(HostsPlan, WhatEndsANodeIsNeverItsCheckpointSignal) {
  EXPECT_EQ(ending_signal({SIGTERM, SIGHUP}, SIGHUP), SIGHUP);
  EXPECT_EQ(ending_signal({SIGTERM, SIGINT}, SIGHUP), SIGTERM);
  EXPECT_EQ(ending_signal({}, SIGHUP), SIGKILL);
  EXPECT_EQ(plan({"--hosts", "a", "--checkpoint-signal", "HUP", "x"}).order.checkpoint_signal,
            SIGHUP);
}

TEST(HostsPlan, EtcdsFlagsGoToTheNodes) {
  HostsPlan made = plan({"--hosts", "a", "--rdzv-backend", "etcd", "--rdzv-endpoint", "e:2379",
                         "--rdzv-id", "j", "train"});
  set_endpoint(made);
  EXPECT_THAT(made.order.arguments,
              AllOf(Contains("--rdzv-endpoint=e:2379"), Contains("--rdzv-id=j"),
                    Contains("--rdzv-backend=etcd"), Contains("--nnodes=1:1")));
}

TEST(HostsPlan, AnIpv6AddressGetsBracketsAndSparesNoRank) {
  HostsPlan made = plan({"--hosts", "a,b,c", "--nnodes", "1:2", "--local-addr", "fd00::7", "x"});
  made.job.spec.coordinator_port = 1;
  set_endpoint(made);
  EXPECT_THAT(made.order.arguments, Contains("--rdzv-endpoint=[fd00::7]:1"));
  EXPECT_EQ(made.order.places[1].node_rank, 1);
  EXPECT_EQ(made.order.places[2].node_rank, -1);
}

TEST(HostsPlan, ADryRunKnowsThePartOfEachHost) {
  const auto parts = plan_host_parts(
      plan({"--hosts", "u@known:2,alias:3,spare:1", "--nnodes", "1:2", "--numa-binding", "node",
            "--devices", "4,5,6", "-x", "PYTHON_EXEC=py", "t.py"}));
  ASSERT_TRUE(parts) << parts.error().message;
  ASSERT_EQ(parts->size(), 3u);
  const HostPart& first = parts->front();
  EXPECT_EQ(first.plan.spec.host, "known");
  EXPECT_EQ(first.plan.spec.node_rank, 0);
  EXPECT_EQ(first.plan.spec.nproc, 2);
  EXPECT_EQ(first.plan.spec.rules.max_restarts, 3);
  EXPECT_EQ(first.plan.spec.coordinator_host, "10.1.0.7");
  EXPECT_EQ(first.plan.spec.coordinator_port, 0);
  EXPECT_EQ(first.plan.spec.command.front(), "py");
  EXPECT_EQ(first.numa_binding, "node");
  EXPECT_TRUE(first.plan.spec.numa_binding.empty());
  EXPECT_THAT(first.plan.spec.devices, ElementsAre("4", "5", "6"));
  EXPECT_TRUE(first.plan.spec.rdzv_token.empty());
  EXPECT_EQ((*parts)[1].plan.spec.node_rank, 1);
  EXPECT_EQ((*parts)[2].plan.spec.node_rank, -1);
  for (const HostPart& part : *parts)
    EXPECT_THAT(part.plan.spec.dry_run_workers, ElementsAre(2, 3));
}

TEST(HostsPlan, WhatAHostCountsIsNotGuessedByADryRun) {
  for (const char* count : {"gpu", "cpu", "auto"}) {
    const auto parts =
        plan_host_parts(plan({"--hosts", "known,alias:3", "--nproc-per-node", count, "t.py"}));
    ASSERT_TRUE(parts) << parts.error().message;
    EXPECT_FALSE((*parts)[0].workers_known);
    EXPECT_THAT((*parts)[0].counted, HasSubstr("one for each"));
    EXPECT_TRUE((*parts)[1].workers_known);
  }
}

}  // namespace
}  // namespace ddp::hosts
