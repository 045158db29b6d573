// What ddp-run derives from a SLURM step: options, unless a flag sets them, and the plan.
#include <string>
#include <vector>

#include "launcher/plan/job_plan.h"
#include "tests/unit/launcher/ddp_run_lines.h"
#include "tests/unit/launcher/slurm_environment.h"

namespace ddp::flags {
namespace {

using slurm::one_task_a_node;
using slurm::two_tasks_a_node;
using slurm::with;
using testing::ElementsAre;
using testing::HasSubstr;

Environment step_node(int rank) {
  const std::string text = std::to_string(rank);
  return with(one_task_a_node(), {{"SLURM_NODEID", text}, {"SLURM_PROCID", text}});
}

machine::Machine slurm_machine(int gpus) {
  return machine::Machine{
      "vm", [] { return 6; }, [gpus](std::string_view) { return gpus; },
      [](const std::string& host) {
        return machine::HostPlace{host == "vm", false, host == "vm" ? "10.0.0.7" : host};
      }};
}

TEST(SlurmFlags, AStepSaysAllThatIsNeeded) {
  const Options options = options_of({"train"}, step_node(1));
  ASSERT_TRUE(options.step);
  EXPECT_EQ(options.spec.rules.min_nodes, 3);
  EXPECT_EQ(options.spec.rules.max_nodes, 3);
  EXPECT_EQ(options.spec.node_rank, 1);
  EXPECT_TRUE(options.node_rank_is_schedulers);
  EXPECT_EQ(options.job_id, "17.0.0");
  EXPECT_FALSE(options.endpoint);
  EXPECT_EQ(options.step_ports.size(), 16U);
  EXPECT_EQ(options.nproc.kind, ProcessCount::Kind::kDevices);
  EXPECT_TRUE(options.requeue);
  EXPECT_TRUE(options.warnings.empty());
}

TEST(SlurmFlags, WhatAFlagSaysWins) {
  const Options options =
      options_of({"--nnodes", "2:3", "--nproc-per-node", "4", "--rdzv-id", "mine", "--node-rank",
                  "0", "--rdzv-endpoint", "head:29500", "--no-requeue", "train"},
                 step_node(1));
  EXPECT_EQ(options.spec.rules.min_nodes, 2);
  EXPECT_EQ(options.spec.rules.max_nodes, 3);
  EXPECT_EQ(options.nproc.number, 4);
  EXPECT_EQ(options.job_id, "mine");
  EXPECT_EQ(options.spec.node_rank, 0);
  EXPECT_FALSE(options.node_rank_is_schedulers);
  ASSERT_TRUE(options.endpoint);
  EXPECT_EQ(options.endpoint->host, "head");
  EXPECT_TRUE(options.step_ports.empty());
  EXPECT_FALSE(options.requeue);

  EXPECT_THAT(options_of({"--master-port", "4711", "train"}, step_node(1)).step_ports,
              ElementsAre(4711));
  const Options alone = options_of({"--standalone", "train"}, step_node(1));
  EXPECT_FALSE(alone.step);
  EXPECT_EQ(alone.spec.rules.max_nodes, 1);
}

// `srun -N1 -n1` in a loop over the nodes: each step has one, and knows no other.
Environment step_of_one(const std::string& step, const std::string& host) {
  return with(one_task_a_node(), {{"SLURM_STEP_ID", step},
                                  {"SLURM_STEP_NODELIST", host},
                                  {"SLURM_STEP_NUM_NODES", "1"},
                                  {"SLURM_STEP_NUM_TASKS", "1"},
                                  {"SLURM_STEP_TASKS_PER_NODE", "1"},
                                  {"SLURM_RESTART_COUNT", "2"}});
}

TEST(SlurmFlags, ANodeOfItsOwnStepIsTheOneThatItsFlagsSay) {
  for (int rank = 0; rank < 2; ++rank) {
    const auto environment = step_of_one(rank == 0 ? "0" : "1", rank == 0 ? "n1" : "n2");
    const Options options = options_of({"--nnodes=2", "--node-rank=" + std::to_string(rank),
                                        "--master-addr=n1", "--master-port=4711", "train"},
                                       environment);
    ASSERT_TRUE(options.step);
    EXPECT_TRUE(options.step_is_part);
    EXPECT_EQ(options.spec.rules.min_nodes, 2);
    EXPECT_EQ(options.spec.node_rank, rank);
    EXPECT_FALSE(options.node_rank_is_schedulers);
    EXPECT_EQ(options.job_id, "17.2");  // The step's number is no part of it.
    EXPECT_TRUE(options.step_ports.empty());
    EXPECT_TRUE(options.requeue);
    EXPECT_EQ(options.nproc.kind, ProcessCount::Kind::kDevices);
  }
}

TEST(SlurmFlags, NodesOfSeveralStepsMayMeetInAnyOrder) {
  for (const char* nnodes : {"2", "1:2", "2:3"}) {
    const Options options = options_of({"--nnodes", nnodes, "--rdzv-backend", "c10d",
                                        "--rdzv-endpoint", "n1:4711", "--rdzv-id", "X", "train"},
                                       step_of_one("1", "n2"));
    EXPECT_TRUE(options.step_is_part) << nnodes;
    EXPECT_EQ(options.spec.node_rank, -1) << nnodes;
    EXPECT_EQ(options.job_id, "X");
  }
  const Options whole = options_of({"--rdzv-endpoint", "n1:4711", "train"}, step_node(1));
  EXPECT_FALSE(whole.step_is_part);
  EXPECT_EQ(whole.spec.node_rank, 1);
  for (const char* nnodes : {"2:3", "2:8"}) {
    EXPECT_FALSE(options_of({"--nnodes", nnodes, "--rdzv-endpoint", "n1:1", "train"}, step_node(1))
                     .step_is_part);
  }
}

TEST(SlurmFlags, NodesBeyondThoseAskedForAreSparesWithoutARank) {
  EXPECT_EQ(options_of({"--nnodes", "2", "train"}, step_node(1)).spec.node_rank, 1);
  EXPECT_EQ(options_of({"--nnodes", "2", "train"}, step_node(2)).spec.node_rank, -1);
}

TEST(SlurmFlags, AStepOfOneNodeNeedsNoEndpoint) {
  const Options options =
      options_of({"train"}, with(one_task_a_node(), {{"SLURM_STEP_NODELIST", "n1"},
                                                     {"SLURM_STEP_NUM_NODES", "1"},
                                                     {"SLURM_STEP_NUM_TASKS", "1"},
                                                     {"SLURM_STEP_TASKS_PER_NODE", "1"}}));
  EXPECT_TRUE(options.step);
  EXPECT_TRUE(options.step_ports.empty());
  EXPECT_EQ(options.spec.rules.max_nodes, 1);
}

TEST(SlurmFlags, TasksAreWorkers) {
  const Options options = options_of({"train"}, two_tasks_a_node());
  EXPECT_EQ(options.nproc.kind, ProcessCount::Kind::kNumber);
  EXPECT_EQ(options.nproc.number, 2);
  EXPECT_EQ(options.spec.rules.max_nodes, 2);
  EXPECT_EQ(options.spec.node_rank, 1);
  EXPECT_TRUE(plan::is_follower(options));
  for (const char* count : {"2", "gpu", "auto"})
    EXPECT_EQ(options_of({"--nproc-per-node", count, "train"}, two_tasks_a_node()).nproc.number, 2);
  const auto cyclic = with(two_tasks_a_node(), {{"SLURM_PROCID", "1"}, {"SLURM_LOCALID", "0"}});
  EXPECT_THAT(options_of({"train"}, cyclic).warnings, ElementsAre(HasSubstr("srun -m block")));
}

TEST(SlurmFlags, WhatCannotBeIsRefused) {
  const auto refusal = [](const Arguments& arguments, const Environment& environment) {
    const auto options = parse(arguments, environment);
    EXPECT_FALSE(options);
    return options ? std::string() : options.error().message;
  };
  EXPECT_THAT(refusal({"--nnodes", "4", "train"}, step_node(0)),
              HasSubstr("--nnodes 4: the SLURM step has 3 nodes"));
  EXPECT_THAT(refusal({"--nnodes", "2", "--node-rank", "1", "train"}, step_of_one("0", "n1")),
              HasSubstr("to join the nodes of several steps, add --rdzv-endpoint"));
  EXPECT_THAT(refusal({"--nproc-per-node", "8", "train"}, two_tasks_a_node()),
              HasSubstr("--nproc-per-node 8: srun has started 2 tasks on this node"));
  EXPECT_THAT(refusal({"--standby", "1", "train"}, two_tasks_a_node()),
              HasSubstr("--standby 1: a standby worker has no srun task"));
  const auto half = with(step_node(0), {{"SLURM_STEP_NODELIST", ""}});
  EXPECT_THAT(refusal({"train"}, half), HasSubstr("SLURM_STEP_NODELIST is not set"));
  EXPECT_TRUE(parse({"--nnodes", "3", "--rdzv-endpoint", "n:1", "train"}, half));
}

TEST(SlurmPlan, TheFirstNodeHostsAtAnAddressOfItsOwn) {
  const auto first = plan::plan_job(options_of({"train"}, step_node(0)), slurm_machine(0));
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->host);
  EXPECT_EQ(first->bind_address, "");
  EXPECT_EQ(first->spec.coordinator_host, "10.0.0.7");
  EXPECT_EQ(first->spec.host, "n1");
  EXPECT_EQ(first->spec.nproc, 1);
  EXPECT_TRUE(first->spec.signals_from_launcher);
  EXPECT_FALSE(first->spec.in_tasks);
  const auto second = plan::plan_job(options_of({"train"}, step_node(1)), slurm_machine(4));
  ASSERT_TRUE(second);
  EXPECT_FALSE(second->host);
  EXPECT_EQ(second->spec.coordinator_host, "n1");
  EXPECT_EQ(second->step_ports, first->step_ports);
  EXPECT_EQ(second->spec.host, "n2");
  EXPECT_EQ(second->spec.node_rank, 1);
  EXPECT_EQ(second->spec.nproc, 4);
}

TEST(SlurmPlan, AStepThatIsPartOfTheJobLeavesItsOtherHostsOpen) {
  const auto plan =
      plan::plan_job(options_of({"--nnodes=2", "--node-rank=1", "--master-addr=vm", "train"},
                                step_of_one("1", "n2")),
                     slurm_machine(0));
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->step_is_part);
  EXPECT_FALSE(plan->host);
  EXPECT_EQ(plan->spec.host, "n2");
  EXPECT_EQ(plan->spec.node_rank, 1);
  EXPECT_TRUE(plan->spec.expected_hosts.empty());
  EXPECT_TRUE(plan->spec.signals_from_launcher);
  EXPECT_TRUE(plan->requeue);
}

TEST(SlurmPlan, OutsideAStepNothingOfItIsThere) {
  const auto plan = plan::plan_job(options_of({"train"}), slurm_machine(0));
  ASSERT_TRUE(plan);
  EXPECT_FALSE(plan->step);
  EXPECT_FALSE(plan->requeue);
  EXPECT_FALSE(plan->spec.signals_from_launcher);
}

}  // namespace
}  // namespace ddp::flags
