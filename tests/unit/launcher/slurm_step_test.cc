#include <csignal>
#include <cstdlib>
#include <ctime>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_codes.h"
#include "launcher/slurm/command.h"
#include "launcher/slurm/munge.h"
#include "launcher/slurm/scontrol.h"
#include "launcher/slurm/step/requeue.h"
#include "launcher/slurm/step/step.h"
#include "tests/unit/launcher/slurm_environment.h"

namespace ddp::slurm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

GetEnvironment getter(const Environment& environment) {
  return [&environment](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  };
}

Result<std::optional<Step>> read(const Environment& environment) {
  return read_step(getter(environment));
}

Step step_of(const Environment& environment) {
  auto step = read(environment);
  EXPECT_TRUE(step) << (step ? "" : step.error().message);
  EXPECT_TRUE(step && *step);
  return step && *step ? **step : Step{};
}

TEST(SlurmStep, OneTaskANodeIsADdpRunThatStartsTheWorkers) {
  const Step step = step_of(one_task_a_node());
  EXPECT_THAT(step.hosts, ElementsAre("n1", "n2", "n3"));
  EXPECT_THAT(step.tasks, ElementsAre(1, 1, 1));
  EXPECT_EQ(step.num_nodes(), 3);
  EXPECT_FALSE(step.tasks_are_workers());
  EXPECT_EQ(step.run_id(), "17.0.0");
  EXPECT_EQ(step.scontrol_id(), "17");
  EXPECT_FALSE(step.end_time);
}

TEST(SlurmStep, SeveralTasksANodeAreTheWorkers) {
  const Step step = step_of(two_tasks_a_node());
  EXPECT_TRUE(step.tasks_are_workers());
  EXPECT_EQ(step.tasks_here(), 2);
  EXPECT_EQ(step.node_rank, 1);
  EXPECT_EQ(step.rank, 3);
  EXPECT_EQ(step.local_rank, 1);
  EXPECT_TRUE(step.ranks_follow_nodes());
  EXPECT_EQ(step.run_id(), "17.4.0");
}

TEST(SlurmStep, NodesMayHaveDifferentNumbersOfTasks) {
  const Step step = step_of(with(two_tasks_a_node(), {{"SLURM_STEP_TASKS_PER_NODE", "1,3"}}));
  EXPECT_TRUE(step.tasks_are_workers());
  EXPECT_EQ(step.tasks_here(), 3);
  EXPECT_FALSE(step.ranks_follow_nodes());
}

TEST(SlurmStep, ACyclicDistributionIsSeen) {
  // srun -N2 -n4 -m cyclic: tasks 1 and 3 are on the second node.
  const auto cyclic = with(two_tasks_a_node(), {{"SLURM_PROCID", "1"}, {"SLURM_LOCALID", "0"}});
  EXPECT_FALSE(step_of(cyclic).ranks_follow_nodes());
}

TEST(SlurmStep, RestartsAndArraysAreInItsNames) {
  const Step step = step_of(with(one_task_a_node(), {{"SLURM_RESTART_COUNT", "2"},
                                                     {"SLURM_ARRAY_JOB_ID", "15"},
                                                     {"SLURM_ARRAY_TASK_ID", "7"},
                                                     {"SLURM_JOB_END_TIME", "1790000000"}}));
  EXPECT_EQ(step.run_id(), "17.0.2");
  EXPECT_EQ(step.scontrol_id(), "15_7");
  EXPECT_EQ(step.end_time, 1'790'000'000);
}

TEST(SlurmStep, ElsewhereThereIsNone) {
  const std::vector<Environment> cases = {
      {},
      batch_script(),
      {{"SLURM_JOB_ID", "17"}, {"SLURM_JOB_NUM_NODES", "2"}},          // salloc
      with(one_task_a_node(), {{"SLURM_STEP_ID", "4294967291"}}),      // The batch step.
      with(one_task_a_node(), {{"SLURM_STEP_ID", "4294967290"}}),      // salloc's own step.
      with(one_task_a_node(), {{"SLURM_PROCID", ""}}),                 // srun --pty's kin.
      with(one_task_a_node(), {{"DDP_NODE_ID", "0123456789abcdef"}}),  // A worker.
  };
  for (const Environment& each : cases) {
    const auto step = read(each);
    ASSERT_TRUE(step) << step.error().message;
    EXPECT_FALSE(*step) << testing::PrintToString(each);
  }
}

struct Wrong {
  Environment changes;
  std::string says;
};

TEST(SlurmStep, WhatDoesNotFitTogetherIsNamed) {
  const std::vector<Wrong> cases = {
      {{{"SLURM_STEP_NODELIST", ""}}, "SLURM_STEP_NODELIST is not set"},
      {{{"SLURM_JOB_ID", ""}}, "SLURM_JOB_ID is not set"},
      {{{"SLURM_STEP_TASKS_PER_NODE", ""}}, "SLURM_STEP_TASKS_PER_NODE is not set"},
      {{{"SLURM_STEP_NODELIST", "n[1-"}}, "SLURM_STEP_NODELIST=n[1-: character 5"},
      {{{"SLURM_STEP_NUM_NODES", "2"}}, "SLURM_STEP_NUM_NODES is 2, but"},
      {{{"SLURM_STEP_NUM_TASKS", "4"}}, "SLURM_STEP_NUM_TASKS is 4, but"},
      {{{"SLURM_STEP_NUM_TASKS", "x"}}, "SLURM_STEP_NUM_TASKS=x: not a number"},
      {{{"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}}, "describes 2 nodes"},
      {{{"SLURM_NODEID", "3"}}, "SLURM_NODEID=3: the step has 3 nodes"},
      {{{"SLURM_PROCID", "3"}}, "SLURM_PROCID=3: the step has 3 tasks"},
      {{{"SLURM_LOCALID", "1"}}, "SLURM_LOCALID=1: the step has 1 tasks"},
      {{{"SLURM_NODEID", "-1"}}, "SLURM_NODEID=-1: not a number"},
      {{{"SLURM_RESTART_COUNT", "x"}}, "SLURM_RESTART_COUNT=x: not a number"},
  };
  for (const Wrong& each : cases) {
    const auto step = read(with(one_task_a_node(), each.changes));
    ASSERT_FALSE(step) << each.says;
    EXPECT_THAT(step.error().message, HasSubstr(each.says));
  }
}

TEST(SlurmStep, ItsPortsAreKnownToAllItsNodesAndNobodyElses) {
  Step step = step_of(one_task_a_node());
  const std::vector<int> ports = rendezvous_ports(step);
  EXPECT_EQ(ports.size(), 16U);
  EXPECT_EQ(std::set<int>(ports.begin(), ports.end()).size(), ports.size());
  for (const int port : ports) {
    EXPECT_GE(port, 20'000);
    EXPECT_LT(port, 32'000);
  }
  step.node_rank = 2;
  step.rank = 2;
  EXPECT_EQ(rendezvous_ports(step), ports);
  int same = 0;
  for (int job = 0; job < 200; ++job) {
    Step other = step;
    other.job_id = std::to_string(job + 18);
    if (rendezvous_ports(other).front() == ports.front()) ++same;
  }
  EXPECT_LE(same, 2);
}

TEST(SlurmAllocation, IsWhereNoSrunWasTyped) {
  const auto batch = read_allocation(getter(batch_script()));
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->num_nodes, 2);
  EXPECT_TRUE(batch->on_a_node);
  const Environment salloc{{"SLURM_JOB_ID", "17"}, {"SLURM_JOB_NUM_NODES", "1"}};
  ASSERT_TRUE(read_allocation(getter(salloc)));
  EXPECT_FALSE(read_allocation(getter(salloc))->on_a_node);
  EXPECT_FALSE(read_allocation(getter({})));
  const Environment step = one_task_a_node();
  EXPECT_FALSE(read_allocation(getter(step)));
  const Environment worker = with(batch_script(), {{"DDP_NODE_ID", "0123456789abcdef"}});
  EXPECT_FALSE(read_allocation(getter(worker)));
}

struct StopCase {
  const char* what;
  Stop stop;
  std::optional<std::int64_t> end_time;
  bool goes_on;
};

TEST(SlurmRequeue, IsForRunsThatWereToldToStopAndCanGoOn) {
  constexpr int kTerm = kExitSignalBase + SIGTERM;
  const std::vector<StopCase> cases = {
      {"it is done", {.exit_code = 0, .warned = true}, 100, false},
      {"warned", {.exit_code = kTerm, .warned = true}, {}, true},
      {"warned, and died of the signal", {.exit_code = 138, .warned = true}, {}, true},
      {"a worker elsewhere died of the warning", {.exit_code = 138, .warning = 10}, {}, true},
      {"died of a signal that is no warning", {.exit_code = 138, .warning = 12}, {}, false},
      {"died of a signal where none is a warning", {.exit_code = 138}, {}, false},
      {"before the limit, by itself",
       {.exit_code = kTerm, .at_time_limit = true, .has_checkpoint = true},
       100,
       true},
      {"at the limit",
       {.exit_code = kTerm, .terminated = true, .has_checkpoint = true, .now = 100},
       100,
       true},
      {"at the limit by a clock that is behind",
       {.exit_code = kTerm, .terminated = true, .has_checkpoint = true, .now = 98},
       100,
       true},
      {"at the limit, without a checkpoint",
       {.exit_code = kTerm, .terminated = true, .now = 100},
       100,
       false},
      {"cancelled",
       {.exit_code = kTerm, .terminated = true, .has_checkpoint = true, .now = 50},
       100,
       false},
      {"cancelled, without a limit",
       {.exit_code = kTerm, .terminated = true, .has_checkpoint = true, .now = 50},
       {},
       false},
      {"failed at the limit",
       {.exit_code = 1, .terminated = true, .has_checkpoint = true, .now = 100},
       100,
       false},
      {"failed", {.exit_code = 1, .has_checkpoint = true, .now = 50}, 100, false},
  };
  for (const StopCase& each : cases)
    EXPECT_EQ(is_to_be_continued(each.stop, each.end_time), each.goes_on) << each.what;
}

TEST(SlurmScontrol, LinesAreReadByTheirFields) {
  const std::string line =
      "JobId=17 JobName=x EndTime=2026-11-22T12:34:56 Deadline=N/A NodeAddr=10.0.0.7 Comment=a=b";
  EXPECT_EQ(field_of(line, "JobId"), "17");
  EXPECT_EQ(field_of(line, "EndTime"), "2026-11-22T12:34:56");
  EXPECT_EQ(field_of(line, "NodeAddr"), "10.0.0.7");
  EXPECT_EQ(field_of(line, "Comment"), "a=b");
  EXPECT_EQ(field_of(line, "Addr"), "");
  EXPECT_EQ(field_of("", "JobId"), "");
}

TEST(SlurmScontrol, TheSocketOfMungeStandsInAuthInfo) {
  const std::string before = "Configuration data as of now AccountingStorageTRES = cpu ";
  EXPECT_EQ(
      munge_socket_in(before + "AuthInfo                = ttl=5,socket=/run/m,x AuthType = a"),
      "/run/m");
  EXPECT_EQ(munge_socket_in(before + "AuthInfo = socket=/run/m/s AuthType                = a"),
            "/run/m/s");
  EXPECT_EQ(munge_socket_in(before + "AuthInfo = (null) AuthType = auth/munge X = socket=/y"), "");
  EXPECT_EQ(munge_socket_in(before), "");
}

TEST(SlurmMunge, WhatUnmungePrintsIsAUserAndAText) {
  const auto opened = parse_unmunge("UID:             some (body) (1004)\n\nthe text\n\nof it");
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->uid, 1004U);
  EXPECT_EQ(opened->text, "the text\n\nof it");
  for (const char* text : {"", "UID: x (1)", "UID: x\n\ny", "UID: x (y)\n\nz", "UID: x (1\n\nz",
                           "unmunge: Error: Invalid credential (8)\n\n"}) {
    const auto wrong = parse_unmunge(text);
    ASSERT_FALSE(wrong) << text;
    EXPECT_EQ(wrong.error().code, Errc::kProtocol);
  }
}

TEST(SlurmCommand, GivesStatusAndOutputOfAProgramThatReadsItsInput) {
  const auto echoed = run_command({"sh", "-c", "cat; echo error >&2; exit 3"}, "input\n");
  ASSERT_TRUE(echoed) << echoed.error().message;
  EXPECT_EQ(echoed->status, 3);
  EXPECT_EQ(echoed->output, "input\nerror\n");
  const auto deaf = run_command({"sh", "-c", "exec 0<&-; kill -9 $$"}, std::string(32'768, 'x'));
  ASSERT_TRUE(deaf);
  EXPECT_EQ(deaf->status, 128 + SIGKILL);
  const auto missing = run_command({"no-such-program-of-slurm"}, "");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Errc::kNotFound);
}

// As scontrol, when the job that it puts back into the queue is its own.
TEST(SlurmCommand, IsNotEndedByTheSigtermThatItBringsAbout) {
  const auto finished = run_command({"sh", "-c", "kill -TERM $$; echo done"}, "");
  ASSERT_TRUE(finished) << finished.error().message;
  EXPECT_EQ(finished->status, 0);
  EXPECT_EQ(finished->output, "done\n");
}

TEST(SlurmScontrol, TimesAreThoseOfThisMachinesZone) {
  const char* zone = std::getenv("TZ");
  const std::string before = zone != nullptr ? zone : "";
  ::setenv("TZ", "UTC-3", 1);
  ::tzset();
  EXPECT_EQ(parse_time("1970-01-02T03:00:00"), 86'400);
  EXPECT_EQ(parse_time("Unknown"), std::nullopt);
  EXPECT_EQ(parse_time("1970-01-02T03:00:00x"), std::nullopt);
  if (zone != nullptr) {
    ::setenv("TZ", before.c_str(), 1);
  } else {
    ::unsetenv("TZ");
  }
  ::tzset();
}

}  // namespace
}  // namespace ddp::slurm
