// Which process starts the workers of a Trainer.
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/trainer_launch/launch_plan.h"

namespace ddp::trainer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Lookup environment(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return {};
    return found->second;
  };
}

std::string complaint(const WantedWorkers& wanted, std::map<std::string, std::string> variables) {
  try {
    plan_launch(wanted, environment(std::move(variables)));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return {};
}

const std::map<std::string, std::string> kTwoOfFour = {
    {"WORLD_SIZE", "4"}, {"RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"GROUP_WORLD_SIZE", "2"}};

using Start = LaunchPlan::Start;

void expect_plan(const WantedWorkers& wanted, std::map<std::string, std::string> variables,
                 Start start, int workers) {
  const LaunchPlan plan = plan_launch(wanted, environment(std::move(variables)));
  EXPECT_EQ(plan.start, start);
  EXPECT_EQ(plan.workers, workers);
}

TEST(TrainerLaunch, AloneAProgramStartsTheWorkersThatItAsksFor) {
  expect_plan({.devices = 3, .strategy = "ddp"}, {}, Start::kWorkers, 3);
  expect_plan({.devices = 1, .strategy = "ddp"}, {}, Start::kNothing, 0);
  expect_plan({.strategy = "ddp"}, {}, Start::kNothing, 0);
  expect_plan({.devices = 3, .one_process = true, .strategy = "dp"}, {}, Start::kNothing, 0);
}

TEST(TrainerLaunch, StartedByALauncherItStartsNobody) {
  expect_plan({.devices = 2, .num_nodes = 2, .strategy = "ddp"}, kTwoOfFour, Start::kNothing, 0);
  expect_plan({.strategy = "ddp"}, kTwoOfFour, Start::kNothing, 0);
  // A world of one is one, too; and who waits for a place will have it.
  expect_plan({.devices = 1, .strategy = "ddp"}, {{"WORLD_SIZE", "1"}, {"LOCAL_WORLD_SIZE", "1"}},
              Start::kNothing, 0);
  expect_plan({.devices = 2, .strategy = "ddp"}, {{"DDP_STANDBY", "1"}}, Start::kNothing, 0);
  // Launchers that do not say how many are on a node.
  expect_plan({.devices = 2, .strategy = "ddp"}, {{"WORLD_SIZE", "4"}}, Start::kNothing, 0);
}

std::map<std::string, std::string> step(int nodes, int tasks) {
  return {{"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", "0"},
          {"SLURM_STEP_NUM_NODES", std::to_string(nodes)},
          {"SLURM_STEP_NUM_TASKS", std::to_string(tasks)}};
}

// Else each task of srun would train on its own.
TEST(TrainerLaunch, TasksOfSrunBecomeOneJob) {
  expect_plan({.strategy = "ddp"}, step(2, 4), Start::kStep, 0);
  expect_plan({.devices = 2, .num_nodes = 2, .strategy = "ddp"}, step(2, 4), Start::kStep, 0);
  expect_plan({.devices = 4, .num_nodes = 2, .strategy = "ddp"}, step(2, 2), Start::kStep, 4);
  expect_plan({.devices = 4, .strategy = "ddp"}, step(1, 1), Start::kStep, 4);
  expect_plan({.strategy = "ddp"}, step(1, 1), Start::kNothing, 0);
  expect_plan({.one_process = true, .strategy = "single"}, step(1, 1), Start::kNothing, 0);
  // Its workers have both.
  auto worker = step(2, 4);
  worker.insert(kTwoOfFour.begin(), kTwoOfFour.end());
  expect_plan({.strategy = "ddp"}, worker, Start::kNothing, 0);
  EXPECT_THAT(complaint({.one_process = true, .strategy = "single"}, step(1, 2)),
              HasSubstr("strategy \"single\" is one process, but the launcher has started 2"));
  // A batch script is no task, though it has some of the variables.
  EXPECT_THAT(complaint({.devices = 4, .num_nodes = 3, .strategy = "ddp"}, {{"SLURM_PROCID", "0"}}),
              HasSubstr("num_nodes 3: this process was started alone"));
}

TEST(TrainerLaunch, SaysWhatDoesNotFitAndWhatToType) {
  EXPECT_THAT(complaint({.devices = 4, .num_nodes = 3, .strategy = "ddp"}, {}),
              testing::AllOf(HasSubstr("num_nodes 3: this process was started alone"),
                             HasSubstr("ddp-run --nnodes 3 --nproc-per-node 4"),
                             HasSubstr("srun --nodes 3 ddp-run --nproc-per-node 4")));
  EXPECT_THAT(complaint({.devices = 4, .strategy = "ddp"}, kTwoOfFour),
              HasSubstr("devices 4, but the launcher has started 2 on this node"));
  EXPECT_THAT(complaint({.num_nodes = 3, .strategy = "ddp"}, kTwoOfFour),
              HasSubstr("num_nodes 3, but the launcher has 2"));
  EXPECT_THAT(complaint({.one_process = true, .strategy = "single"}, kTwoOfFour),
              HasSubstr("strategy \"single\" is one process, but the launcher has started 4"));
}

TEST(TrainerLaunch, TheProgramIsStartedWithItsArguments) {
  EXPECT_THAT(launch_command("/bin/ddp-run", {Start::kWorkers, 2, 3}, {"/prog", "--lr", "0.1"}),
              ElementsAre("/bin/ddp-run", "--standalone", "--nproc-per-node", "2", "--max-restarts",
                          "3", "--no-python", "--", "/prog", "--lr", "0.1"));
  EXPECT_THAT(launch_command("/bin/ddp-run", {Start::kStep, 0, 0}, {"/prog"}),
              ElementsAre("/bin/ddp-run", "--max-restarts", "0", "--no-python", "--", "/prog"));
}

}  // namespace
}  // namespace ddp::trainer
