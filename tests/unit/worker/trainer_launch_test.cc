// Who starts the workers that a Trainer asks for.
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/ddp/trainer/launch_plan.h"

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

TEST(TrainerLaunch, AloneAProgramStartsTheWorkersThatItAsksFor) {
  EXPECT_EQ(plan_launch({.devices = 3, .strategy = "ddp"}, environment({})).start_workers, 3);
  EXPECT_EQ(plan_launch({.devices = 1, .strategy = "ddp"}, environment({})).start_workers, 0);
  EXPECT_EQ(plan_launch({.strategy = "ddp"}, environment({})).start_workers, 0);
  EXPECT_EQ(plan_launch({.devices = 3, .one_process = true, .strategy = "dp"}, environment({}))
                .start_workers,
            0);
}

TEST(TrainerLaunch, StartedByALauncherItStartsNobody) {
  EXPECT_EQ(plan_launch({.devices = 2, .num_nodes = 2, .strategy = "ddp"}, environment(kTwoOfFour))
                .start_workers,
            0);
  EXPECT_EQ(plan_launch({.strategy = "ddp"}, environment(kTwoOfFour)).start_workers, 0);
  // A world of one is one, too; and who waits for a place will have it.
  EXPECT_EQ(plan_launch({.devices = 1, .strategy = "ddp"},
                        environment({{"WORLD_SIZE", "1"}, {"LOCAL_WORLD_SIZE", "1"}}))
                .start_workers,
            0);
  EXPECT_EQ(plan_launch({.devices = 2, .strategy = "ddp"}, environment({{"DDP_STANDBY", "1"}}))
                .start_workers,
            0);
  // Launchers that do not say how many are on a node.
  EXPECT_EQ(plan_launch({.devices = 2, .strategy = "ddp"}, environment({{"WORLD_SIZE", "4"}}))
                .start_workers,
            0);
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
  EXPECT_THAT(launch_command("/bin/ddp-run", 2, {"/prog", "--lr", "0.1"}),
              ElementsAre("/bin/ddp-run", "--standalone", "--nproc-per-node", "2", "--no-python",
                          "--", "/prog", "--lr", "0.1"));
}

}  // namespace
}  // namespace ddp::trainer
