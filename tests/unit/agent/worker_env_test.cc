#include "agent/process/worker_env.h"

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddp::agent {
namespace {

using Environment = std::map<std::string, std::string>;

// A node of three workers in the middle of a job of seven.
wire::RoundStart middle_of_three() {
  wire::RoundStart round;
  round.round = 4;
  round.restarts = 2;
  round.max_restarts = 5;
  round.group_rank = 1;
  round.world_size = 7;
  round.members = {
      {"a", "n1", "10.0.0.1", 2, 0}, {"b", "n2", "10.0.0.2", 3, 2}, {"c", "n3", "10.0.0.3", 2, 5}};
  round.master_addr = "10.0.0.1";
  round.master_port = 29400;
  round.reason = "rank 1 on n1 failed: signal 9";
  return round;
}

config::JobSpec spec() {
  config::JobSpec spec;
  spec.job_id = "job-7";
  spec.node_id = "b";
  spec.role = "trainer";
  spec.signals_to_handle = "SIGTERM, SIGUSR2";
  return spec;
}

WorkerEnvInputs inputs() {
  WorkerEnvInputs inputs;
  inputs.local_rank = 2;
  inputs.control_fd = 11;
  inputs.shm_fd = 12;
  inputs.usable_cores = 13;
  inputs.error_file = "/logs/rank_4.error.json";
  return inputs;
}

Environment environment(const WorkerEnvInputs& in, const std::vector<std::string>& inherited) {
  Environment result;
  for (const std::string& entry : worker_environment(spec(), middle_of_three(), in, inherited)) {
    const std::size_t equals = entry.find('=');
    const bool is_new = result.emplace(entry.substr(0, equals), entry.substr(equals + 1)).second;
    EXPECT_TRUE(is_new) << entry << " stands twice";
  }
  return result;
}

TEST(WorkerEnv, NamesEverythingThatTorchrunNames) {
  const Environment expected = {
      {"RANK", "4"},
      {"LOCAL_RANK", "2"},
      {"WORLD_SIZE", "7"},
      {"LOCAL_WORLD_SIZE", "3"},
      {"GROUP_RANK", "1"},
      {"GROUP_WORLD_SIZE", "3"},
      {"ROLE_NAME", "trainer"},
      {"ROLE_RANK", "4"},
      {"ROLE_WORLD_SIZE", "7"},
      {"MASTER_ADDR", "10.0.0.1"},
      {"MASTER_PORT", "29400"},
      {"DDP_COORDINATOR_ADDR", "10.0.0.1"},
      {"DDP_COORDINATOR_PORT", "29400"},
      {"TORCHELASTIC_RESTART_COUNT", "2"},
      {"TORCHELASTIC_MAX_RESTARTS", "5"},
      {"TORCHELASTIC_RUN_ID", "job-7"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_ERROR_FILE", "/logs/rank_4.error.json"},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM, SIGUSR2"},
      {"OMP_NUM_THREADS", "4"},
      {"DDP_ROUND", "4"},
      {"DDP_ROUND_REASON", "rank 1 on n1 failed: signal 9"},
      {"DDP_NODE_ID", "b"},
      {"DDP_CONTROL_FD", "11"},
      {"DDP_SHM_FD", "12"},
  };
  EXPECT_EQ(environment(inputs(), {}), expected);
}

// As _assign_worker_ranks() of elastic/agent/server/api.py does it: in order of group rank, role by
// role.
TEST(WorkerEnv, RoleRanksCountTheWorkersOfTheRoleOnAllNodes) {
  using Places = std::vector<std::pair<std::string, std::string>>;
  const auto places = [](const std::vector<std::string>& roles) {
    wire::RoundStart round = middle_of_three();
    for (std::size_t i = 0; i < roles.size(); ++i) round.members.edit()[i].role = roles[i];
    Places found;
    for (round.group_rank = 0; round.group_rank < 3; ++round.group_rank) {
      Environment last = round_environment(spec(), round, 1);
      found.emplace_back(last.at("ROLE_RANK"), last.at("ROLE_WORLD_SIZE"));
    }
    return found;
  };
  EXPECT_EQ(places({"x", "x", "x"}), (Places{{"1", "7"}, {"3", "7"}, {"6", "7"}}));
  EXPECT_EQ(places({"x", "reader", "x"}), (Places{{"1", "4"}, {"1", "3"}, {"3", "4"}}));
  EXPECT_EQ(places({"a", "b", "c"}), (Places{{"1", "2"}, {"1", "3"}, {"1", "2"}}));
}

TEST(WorkerEnv, PassesTheInheritedEnvironmentOnAndReplacesWhatItNames) {
  const Environment result = environment(inputs(), {"PATH=/bin", "RANK=99", "EMPTY=", "WITH=a=b",
                                                    "MASTER_ADDR=elsewhere", "RANKED=yes"});
  EXPECT_EQ(result.at("PATH"), "/bin");
  EXPECT_EQ(result.at("EMPTY"), "");
  EXPECT_EQ(result.at("WITH"), "a=b");
  EXPECT_EQ(result.at("RANKED"), "yes");
  EXPECT_EQ(result.at("RANK"), "4");
  EXPECT_EQ(result.at("MASTER_ADDR"), "10.0.0.1");
}

TEST(WorkerEnv, WhatLetsANodeIntoTheJobStaysWithTheAgent) {
  const std::vector<std::string> inherited{"DDP_RDZV_TOKEN=a token of this test", "MINE=1"};
  EXPECT_FALSE(environment(inputs(), inherited).contains("DDP_RDZV_TOKEN"));
  EXPECT_TRUE(environment(inputs(), inherited).contains("MINE"));
  for (const std::string& entry : standby_environment(spec(), inputs(), inherited)) {
    EXPECT_FALSE(entry.starts_with("DDP_RDZV_TOKEN")) << entry;
  }
}

TEST(WorkerEnv, KeepsTheUsersValueOfWhatIsOnlyADefault) {
  const Environment result =
      environment(inputs(), {"OMP_NUM_THREADS=9", "TORCH_NCCL_ASYNC_ERROR_HANDLING=3"});
  EXPECT_EQ(result.at("OMP_NUM_THREADS"), "9");
  EXPECT_EQ(result.at("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "3");
}

// Newer releases warn of it, so it is the user's alone.
TEST(WorkerEnv, TheOlderNameOfNcclsErrorHandlingIsLeftAlone) {
  EXPECT_FALSE(environment(inputs(), {}).contains("NCCL_ASYNC_ERROR_HANDLING"));
  EXPECT_EQ(environment(inputs(), {"NCCL_ASYNC_ERROR_HANDLING=0"}).at("NCCL_ASYNC_ERROR_HANDLING"),
            "0");
}

TEST(WorkerEnv, DevicesAreTheJobsOrOneForEach) {
  config::JobSpec job = spec();
  job.devices = {"2", "4", "GPU-7"};
  const auto of = [&job](const std::string& name) -> std::string {
    for (const std::string& entry :
         worker_environment(job, middle_of_three(), inputs(), {"CUDA_VISIBLE_DEVICES=9"})) {
      if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
    }
    return "(absent)";
  };
  EXPECT_EQ(of("CUDA_VISIBLE_DEVICES"), "2,4,GPU-7");
  EXPECT_EQ(of("LOCAL_RANK"), "2");
  EXPECT_EQ(of("DDP_LOCAL_RANK"), "(absent)");
  job.virtual_local_rank = true;
  EXPECT_EQ(of("CUDA_VISIBLE_DEVICES"), "GPU-7");
  EXPECT_EQ(of("LOCAL_RANK"), "0");
  EXPECT_EQ(of("DDP_LOCAL_RANK"), "2");
  EXPECT_EQ(of("RANK"), "4");
  job.devices.clear();
  EXPECT_EQ(of("CUDA_VISIBLE_DEVICES"), "2");
  job.virtual_local_rank = false;
  EXPECT_EQ(of("CUDA_VISIBLE_DEVICES"), "9");
}

TEST(WorkerEnv, TheTimersFileIsGiven) {
  WorkerEnvInputs in = inputs();
  in.timer_file = "/t/timer";
  in.threads = 3;
  EXPECT_THAT(worker_environment(spec(), middle_of_three(), in, {"TORCHELASTIC_TIMER_FILE=/outer"}),
              testing::IsSupersetOf({"TORCHELASTIC_TIMER_FILE=/t/timer", "OMP_NUM_THREADS=3"}));
}

// libddp of an outer job must not take its place for this one's.
TEST(WorkerEnv, AnOuterJobsPlaceIsNotPassedOn) {
  EXPECT_THAT(environment(inputs(), {"DDP_LOCAL_RANK=7"}),
              testing::Not(testing::Contains(testing::Key("DDP_LOCAL_RANK"))));
}

TEST(WorkerEnv, MoreWorkersThanCoresGetOneThreadEach) {
  WorkerEnvInputs in = inputs();
  in.usable_cores = 2;
  EXPECT_EQ(environment(in, {}).at("OMP_NUM_THREADS"), "1");
}

TEST(WorkerEnv, WithoutLogFolderTheErrorFileOfALauncherAboveIsNotPassedOn) {
  WorkerEnvInputs in = inputs();
  in.error_file.clear();
  EXPECT_FALSE(environment(in, {"TORCHELASTIC_ERROR_FILE=/outer/error.json"})
                   .contains("TORCHELASTIC_ERROR_FILE"));
}

TEST(WorkerEnv, AWorkerThatGoesOnGetsTheSameValuesAsOneThatIsStarted) {
  Environment started = environment(inputs(), {});
  for (const char* of_the_process :
       {"DDP_CONTROL_FD", "DDP_SHM_FD", "TORCHELASTIC_ERROR_FILE", "OMP_NUM_THREADS",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_SIGNALS_TO_HANDLE"}) {
    EXPECT_EQ(started.erase(of_the_process), 1u) << of_the_process;
  }
  EXPECT_EQ(round_environment(spec(), middle_of_three(), 2), started);
}

TEST(WorkerEnv, AStandbyHasNoPlaceNotEvenAnOuterLaunchers) {
  const std::vector<std::string> entries = standby_environment(
      spec(), inputs(), {"RANK=3", "WORLD_SIZE=8", "DDP_SHM_FD=5", "DDP_ROUND=1", "MINE=kept"});
  EXPECT_THAT(entries,
              testing::UnorderedElementsAre(
                  "MINE=kept", "DDP_STANDBY=1", "DDP_NODE_ID=b", "TORCHELASTIC_RUN_ID=job-7",
                  "DDP_CONTROL_FD=11", "TORCHELASTIC_ERROR_FILE=/logs/rank_4.error.json",
                  "OMP_NUM_THREADS=13", "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
                  "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM, SIGUSR2"));
  EXPECT_THAT(environment(inputs(), {"DDP_STANDBY=1"}),
              testing::Not(testing::Contains(testing::Key("DDP_STANDBY"))));
}

TEST(WorkerEnv, SaysHowManySnapshotsThisAgentTakesWhateverAnOuterOneDid) {
  WorkerEnvInputs in = inputs();
  in.snapshots = 2;
  EXPECT_THAT(environment(in, {"DDP_SNAPSHOTS=7"}),
              testing::Contains(testing::Pair("DDP_SNAPSHOTS", "2")));
  in.snapshots = 0;
  EXPECT_THAT(environment(in, {"DDP_SNAPSHOTS=7"}),
              testing::Not(testing::Contains(testing::Key("DDP_SNAPSHOTS"))));
}

TEST(WorkerEnv, RankZerosStoreIsOnTheFirstNodeAndLibddpKeepsTheRendezvous) {
  wire::RoundStart round = middle_of_three();
  round.store_port = 40'001;
  const auto variables = round_environment(spec(), round, 0);
  EXPECT_EQ(variables.at("TORCHELASTIC_USE_AGENT_STORE"), "False");
  EXPECT_EQ(variables.at("MASTER_ADDR"), "10.0.0.1");
  EXPECT_EQ(variables.at("MASTER_PORT"), "40001");
  EXPECT_EQ(variables.at("DDP_STORE_ADDR"), "10.0.0.1");
  EXPECT_EQ(variables.at("DDP_STORE_PORT"), "29400");
  // The coordinator sees a node of its own machine at a loopback address, which leads elsewhere
  // from here.
  round.master_addr = "10.0.0.9";
  for (const char* seen : {"127.0.0.1", "::1", ""}) {
    round.members.edit()[0].address = seen;
    EXPECT_EQ(round_environment(spec(), round, 0).at("MASTER_ADDR"), "10.0.0.9") << seen;
  }
}

// The store is reached through the agent, but other nodes are not.
TEST(WorkerEnv, TheStoreMayBeAtTheAgentWhileTheCoordinatorIsElsewhere) {
  wire::RoundStart round = middle_of_three();
  round.coordinator_addr = round.master_addr;
  round.coordinator_port = round.master_port;
  round.master_addr = "127.0.0.1";
  round.master_port = 40'002;
  auto variables = round_environment(spec(), round, 0);
  EXPECT_EQ(variables.at("MASTER_ADDR"), "127.0.0.1");
  EXPECT_EQ(variables.at("MASTER_PORT"), "40002");
  EXPECT_EQ(variables.at("DDP_COORDINATOR_ADDR"), "10.0.0.1");
  EXPECT_EQ(variables.at("DDP_COORDINATOR_PORT"), "29400");
  // Rank 0's own store is on the coordinator's machine, not on this one.
  round.store_port = 40'001;
  round.members.edit()[0].address = "127.0.0.1";
  variables = round_environment(spec(), round, 0);
  EXPECT_EQ(variables.at("MASTER_ADDR"), "10.0.0.1");
  EXPECT_EQ(variables.at("DDP_STORE_ADDR"), "127.0.0.1");
  EXPECT_EQ(variables.at("DDP_STORE_PORT"), "40002");
}

TEST(WorkerEnv, APyTorchWithoutLibuvIsToldSoUnlessTheUserHas) {
  WorkerEnvInputs given = inputs();
  EXPECT_FALSE(environment(given, {}).contains("USE_LIBUV"));
  given.torch_lacks_libuv = true;
  EXPECT_EQ(environment(given, {}).at("USE_LIBUV"), "0");
  EXPECT_EQ(environment(given, {"USE_LIBUV=1"}).at("USE_LIBUV"), "1");
}

TEST(WorkerEnv, AnOuterLaunchersStoreIsNotPassedOn) {
  EXPECT_FALSE(environment(inputs(), {"DDP_STORE_ADDR=10.0.0.1"}).contains("DDP_STORE_ADDR"));
}

}  // namespace
}  // namespace ddp::agent
