// ddp-run status: the page for people.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "launcher/status/status_command.h"

namespace ddp::status {
namespace {

using testing::HasSubstr;

constexpr const char* kPage = R"json({
  "jobs": [{"job_id": "mnist", "program": "train.py", "state": "running", "round": 2,
    "world_size": 8, "min_nodes": 2, "max_nodes": 4, "restarts": 1, "max_restarts": 3,
    "first_failure": {"round": 1, "text": "rank 1 on n2 failed: signal 9 (SIGKILL)",
                      "log_path": "/logs/rank_1.err"},
    "late": [{"rank": 3, "host": "n1", "computes_ms": 212.4, "others_ms": 101, "since_ms": 80500}],
    "nodes": [
      {"node_id": "x", "host": "n1", "address": "10.0.0.1", "state": "in_round", "nproc": 8,
       "group_rank": 0, "ranks": [0, 7], "step": 120, "steps_per_second": 8.25, "total_steps": 828, "eta_seconds": 85.8, "loss": 0.31234,
       "silent_ms": 400},
      {"node_id": "y", "host": "longer-name", "address": "10.0.0.2", "state": "spare", "nproc": 8,
       "step": -1, "silent_ms": 12000}]}],
  "store": {"keys": 1, "bytes": 300, "connections": 8, "waits": 2, "requests": 77},
  "connections": 11})json";

TEST(StatusText, IsATable) {
  EXPECT_EQ(
      status_text(kPage).value(),
      "job mnist (train.py): running, round 2, 8 workers, 2 to 4 nodes, 1 of 3 restarts used\n"
      "  first failure of round 1: rank 1 on n2 failed: signal 9 (SIGKILL)\n"
      "  its log: /logs/rank_1.err\n"
      "  late: rank 3 (n1) computes 212.4 ms a step, the others 101 ms (median), for 1:21\n"
      "  NODE  HOST         ADDRESS   RANKS  STATE     STEP     STEP/S  ETA   SAMPLES/S  LOSS    "
      "SILENT\n"
      "  0     n1           10.0.0.1  0-7    in_round  120/828  8.25    1:26  -          0.3123  "
      "0.4 s\n"
      "  -     longer-name  10.0.0.2  -      spare     -        -       -     -          -       "
      "12.0 s\n"
      "\n"
      "store: 1 key, 300 bytes, 8 clients (2 wait), 77 requests; 11 connections in all\n");
}

TEST(StatusText, SaysThatALossIsNoNumber) {
  auto page = nlohmann::json::parse(kPage);
  auto& node = page["jobs"][0]["nodes"][0];
  node.erase("loss");
  node["loss_is"] = "NaN";
  EXPECT_THAT(status_text(page.dump()).value(), HasSubstr("  -          NaN   0.4 s\n"));
}

TEST(StatusText, SaysWhoWasNotLetIn) {
  auto page = nlohmann::json::parse(kPage);
  page["refused"] = {{"other_user", 3}, {"wrong_token\x1b", 1}};
  const std::string text = status_text(page.dump()).value();
  EXPECT_THAT(text, testing::HasSubstr("\nrefused: 3 other_user, 1 wrong_token"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("\x1b")));
}

TEST(StatusText, NamesCannotCommandTheTerminal) {
  const auto text = status_text(
      R"({"jobs": [{"job_id": "a\u001b[2J\n", "state": "waiting", "round": -1, "world_size": 0,
          "min_nodes": 1, "max_nodes": 1, "restarts": 0, "max_restarts": 0, "nodes": [],
          "waiting_for": "1 of 2 nodes"}],
          "store": {"keys": 0, "bytes": 0, "connections": 0, "waits": 0, "requests": 0},
          "connections": 1})");
  EXPECT_THAT(text.value(), HasSubstr("job a [2J : waiting, 1 node, 0 of 0 restarts used\n"
                                      "  waiting for: 1 of 2 nodes\n"));
}

TEST(StatusText, OtherPagesAreRefused) {
  for (const char* page : {"", "hello", "[]", "{}", R"({"jobs": 3})", R"({"jobs": [{}]})",
                           R"({"jobs": [], "store": {}})"}) {
    EXPECT_FALSE(status_text(page)) << page;
  }
}

TEST(StatusCommand, IsOneOnlyByItsName) {
  EXPECT_FALSE(run_status_command({}));
  EXPECT_FALSE(run_status_command({"--standalone", "status"}));
  EXPECT_FALSE(run_status_command({"./status"}));
  EXPECT_EQ(run_status_command({"status"}), 2);
  EXPECT_EQ(run_status_command({"status", "--jsn", "a"}), 2);
  EXPECT_EQ(run_status_command({"status", "a", "b"}), 2);
  EXPECT_EQ(run_status_command({"status", "a:99999"}), 64);
  EXPECT_EQ(run_status_command({"status", "--help"}), 0);
}

}  // namespace
}  // namespace ddp::status
