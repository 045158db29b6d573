#include <signal.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/process/ddp_run_fixture.h"

namespace ddp::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

class DdpRunFlight : public DdpRunTest {};

TEST_F(DdpRunFlight, TheReportNamesWhoDidNotComeToWhichOperation) {
  const Finished job = run_job({"--nproc-per-node", "4", "--log-dir", (folder_.path() / "logs"),
                                "--rdzv-id", "job", FLIGHT_WORKER, "skip"});
  EXPECT_NE(job.status, 0);
  EXPECT_THAT(job.err, HasSubstr("Operations when it failed:\n  " + host() + ":\n"));
  EXPECT_THAT(
      job.err,
      ContainsRegex(
          "    ranks 0,2-3 have waited [0-9.]+ m?s in all_reduce #2 \\(bucket 3\\); rank 1 has not "
          "issued it: its last operation was broadcast #1, done [0-9.]+ m?s ago\n"));
  // What every rank did is beside its output.
  std::ifstream file(folder_.path() / "logs" / "job" / "round_0" / "flight_recorder.jsonl");
  std::string line;
  int broadcasts = 0;
  int failed = 0;
  while (std::getline(file, line)) {
    const auto json = nlohmann::json::parse(line);
    if (json["operation"] == "broadcast" && json["state"] == "done") ++broadcasts;
    if (json["operation"] == "all_reduce" && json["state"] == "failed") ++failed;
  }
  EXPECT_EQ(broadcasts, 4);
  EXPECT_EQ(failed, 3);
}

TEST_F(DdpRunFlight, TheReportNamesTheMessageThatDidNotComeAndWhatDid) {
  const Finished job = run_job({"--nproc-per-node", "3", "--log-dir", (folder_.path() / "logs"),
                                "--rdzv-id", "job", FLIGHT_WORKER, "recv"});
  EXPECT_NE(job.status, 0);
  EXPECT_THAT(job.err, ContainsRegex("    ranks 0,2 wait in no operation: their last operation was "
                                     "broadcast #1, done [0-9.]+ m?s ago\n"));
  EXPECT_THAT(
      job.err,
      ContainsRegex("    rank 1 has waited [0-9.]+ m?s in recv from rank 0, tag 7, 4 KiB "
                    "\\(activations\\); rank 0 last sent it tag 6, 4 KiB [0-9.]+ m?s ago\n"));
  std::ifstream file(folder_.path() / "logs" / "job" / "round_0" / "flight_recorder.jsonl");
  std::string line;
  std::vector<nlohmann::json> messages;
  while (std::getline(file, line)) {
    auto json = nlohmann::json::parse(line);
    if (json.contains("message_tag")) messages.push_back(std::move(json));
  }
  ASSERT_EQ(messages.size(), 3U);
  const auto& hung = messages.back();
  EXPECT_EQ(hung["rank"], 1);
  EXPECT_EQ(hung["operation"], "recv");
  EXPECT_EQ(hung["peer"], 0);
  EXPECT_EQ(hung["message_tag"], 7);
  EXPECT_EQ(hung["bytes"], 4096);
  EXPECT_EQ(hung["state"], "failed");
}

// Who fails because of another worker may be gone long before that one.
TEST_F(DdpRunFlight, TheCauseIsNamedThoughItsWorkerEndsLast) {
  const Finished job = run_job({"--nproc-per-node", "3", FLIGHT_WORKER, "cause"});
  EXPECT_EQ(job.status, 68) << job.err;
  EXPECT_THAT(job.err, HasSubstr("rank      : 1 (local_rank: 1)\n  exitcode  : 68 "));
  EXPECT_THAT(job.err, HasSubstr("rank 0 on " + host() +
                                 " failed: exit code 73 (a consequence of another failure)"));
}

TEST_F(DdpRunFlight, TheCauseIsNamedThoughItsNodeEndsLast) {
  const int port = free_port();
  Process& first = start(node(2, port, {"--node-rank", "0", FLIGHT_WORKER, "cause"}));
  Process& second = start(node(2, port, {"--node-rank", "1", FLIGHT_WORKER, "cause"}));
  EXPECT_EQ(first.wait(), 68) << first.err();
  EXPECT_EQ(second.wait(), 68) << second.err();
  EXPECT_THAT(first.err(), HasSubstr("  rank      : 1 (local_rank: 0)\n  exitcode  : 68 "));
}

// All ranks stand still when one hangs; those that wait for it are not at fault.
TEST_F(DdpRunFlight, AHungRankIsTheCauseAndNotThoseThatWaitForIt) {
  Process& job = start({"--nproc-per-node", "3", "--max-restarts", "1", "--progress-timeout", "10",
                        FLIGHT_WORKER, "hang"});
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.err(), ContainsRegex("round 1: rank 1 on " + host() +
                                       " failed: signal 9 \\(SIGKILL\\): no progress for "));
  EXPECT_THAT(job.err(), ContainsRegex("\\[" + host() + ":1\\] +#[0-9]+ +run\\(|main"));
  const std::string dump = "--- stacks of process ";
  const auto first = job.err().find(dump);
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(job.err().find(dump, first + 1), std::string::npos) << "only the hung rank's";
}

// A process that was stopped could go on one day and write to memory that others have then: it is
// gone before the next round begins.
TEST_F(DdpRunFlight, AStoppedWorkerIsGoneBeforeTheNextRound) {
  Process& job = start({"--nproc-per-node", "2", "--max-restarts", "1", FLIGHT_WORKER, "stop"},
                       {{"DDP_STALL_TIMEOUT_MS", "3000"}});
  const pid_t stopped = pid_in("pid.1.0");
  const pid_t next = pid_in("pid.1.1");
  EXPECT_NE(stopped, next);
  EXPECT_EQ(::kill(stopped, 0), -1) << "it lives beside the next round";
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("rank 1 has not run for "));
}

// libddp's workers keep the rendezvous' store, though MASTER_PORT names another then.
TEST_F(DdpRunFlight, AGroupFormsWhereRankZeroMakesPyTorchsStore) {
  const int port = free_port();
  const std::map<std::string, std::string> own{{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"}};
  const Arguments job = node(2, port, {"--max-restarts", "1", FLIGHT_WORKER, "skip"});
  Process& first = start(job, own);
  Process& second = start(job, own);
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
}

}  // namespace
}  // namespace ddp::test
