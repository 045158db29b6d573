#include "agent/shell/event_log.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace ddp::agent {
namespace {

config::JobSpec job() {
  config::JobSpec spec;
  spec.job_id = "job7";
  spec.host = "n1";
  spec.role = "trainer";
  spec.program = "train.py";
  return spec;
}

wire::RoundStart second_of_two() {
  wire::RoundStart round;
  round.restarts = 2;
  round.group_rank = 1;
  round.world_size = 5;
  round.members = {{"a", "n0", "", 3, 0, "reader"}, {"b", "n1", "", 2, 3, "trainer"}};
  return round;
}

// Field by field what torch/distributed/elastic/agent/server/api.py puts together.
TEST(EventJson, HasTorchelasticsFields) {
  WorkerExit exit;
  exit.local_rank = 1;
  exit.pid = 77;
  exit.signal = 9;
  const auto event = nlohmann::json::parse(event_json(job(), second_of_two(),
                                                      {.state = "FAILED",
                                                       .worker = &exit,
                                                       .raw_error = "{\"message\":\"x\"}",
                                                       .time_ms = 1'700'000'000'000,
                                                       .run_time_s = 12}));
  EXPECT_EQ(event.at("name"), "torchelastic.worker.status.FAILED");
  EXPECT_EQ(event.at("source"), "WORKER");
  EXPECT_EQ(event.at("timestamp"), 1'700'000'000'000);
  const auto metadata = event.at("metadata");
  EXPECT_EQ(metadata.size(), 12U);
  EXPECT_EQ(metadata.at("run_id"), "job7");
  EXPECT_EQ(metadata.at("global_rank"), 4);
  EXPECT_EQ(metadata.at("group_rank"), 1);
  EXPECT_EQ(metadata.at("worker_id"), "77");
  EXPECT_EQ(metadata.at("role"), "trainer");
  EXPECT_EQ(metadata.at("hostname"), "n1");
  EXPECT_EQ(metadata.at("state"), "FAILED");
  EXPECT_EQ(metadata.at("total_run_time"), 12);
  EXPECT_EQ(metadata.at("rdzv_backend"), "c10d");
  EXPECT_EQ(metadata.at("raw_error"), "{\"message\":\"x\"}");
  EXPECT_EQ(metadata.at("agent_restarts"), 2);
  const auto details = nlohmann::json::parse(metadata.at("metadata").get<std::string>());
  EXPECT_EQ(details, nlohmann::json::parse(
                         R"({"group_world_size": 2, "entry_point": "train.py", "local_rank": [1],
                             "role_rank": [1], "role_world_size": [2], "exit_code": -9,
                             "worker_pid": 77})"));
}

TEST(EventJson, AnAgentHasNoRank) {
  const auto event =
      nlohmann::json::parse(event_json(job(), second_of_two(), {.state = "HEALTHY"}));
  EXPECT_EQ(event.at("source"), "AGENT");
  EXPECT_TRUE(event.at("metadata").at("global_rank").is_null());
  EXPECT_TRUE(event.at("metadata").at("worker_id").is_null());
  EXPECT_TRUE(event.at("metadata").at("raw_error").is_null());
}

}  // namespace
}  // namespace ddp::agent
