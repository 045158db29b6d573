#include <signal.h>

#include <string>
#include <utility>
#include <vector>

#include "common/base/exit_codes.h"
#include "tests/process/ddp_run_fixture.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;

// Jobs of several nodes that meet at a rendezvous daemon of their own, so that any of them can go.
class DdpRunNodes : public DdpRunTest {
 protected:
  void SetUp() override {
    daemon_ = std::make_unique<Process>(
        Arguments{bin("ddp-rendezvous"), "--bind", "127.0.0.1", "--port", "0"});
    ASSERT_TRUE(daemon_->prints("listening on 127.0.0.1:")) << daemon_->err();
    const std::string line = daemon_->out();
    port_ = std::atoi(line.c_str() + line.find("127.0.0.1:") + 10);
    ASSERT_GT(port_, 0) << line;
  }
  Process& start_node(const std::string& nodes, int rank, const std::string& script) {
    return start({"--nnodes", nodes, "--rdzv-endpoint", "127.0.0.1:" + std::to_string(port_),
                  "--rdzv-id", "job", "--rdzv-conf", "is_host=false", "--node-rank",
                  std::to_string(rank), "--last-call", "60", "--max-restarts", "1", "sh", "-c",
                  script});
  }
  void let_end() { folder_.write("end", ""); }

  std::unique_ptr<Process> daemon_;
  int port_ = 0;
};

// Says where it is and stays until it may end.
constexpr const char* kStaysAndTells =
    "echo $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT, restart $TORCHELASTIC_RESTART_COUNT, "
    "round $DDP_ROUND; until [ -e $OUT/end ]; do sleep 0.02; done";

// Row 2: torchrun's node that becomes rank 0 later has the store of the old one.
TEST_F(DdpRunNodes, ANodeThatBecomesRankZeroFindsTheStore) {
  Process& first = start_node("1:2", 0, kStaysAndTells);
  Process& second = start_node("1:2", 1, kStaysAndTells);
  const std::string store = " at 127.0.0.1:" + std::to_string(port_);
  ASSERT_TRUE(first.prints("0 of 2" + store));
  ASSERT_TRUE(second.prints("1 of 2" + store));
  first.kill(SIGKILL);
  EXPECT_TRUE(second.prints("0 of 1" + store + ", restart 1, round 1")) << second.err();
  let_end();
  EXPECT_EQ(second.wait(), 0) << second.err();
}

// Rows 4 and 5: counts that differ from node to node.
TEST_F(DdpRunNodes, AllNodesCountTheSameRestarts) {
  const std::string script = std::string("echo > $OUT/up.$RANK; ") +
                             "if [ $DDP_ROUND = 0 ]; then [ $RANK = 1 ] || exec sleep 100; "
                             "until [ -e $OUT/up.0 ]; do sleep 0.02; done; exit 3; fi; " +
                             kStaysAndTells;
  Process& first = start_node("2", 0, script);
  Process& second = start_node("2", 1, script);
  EXPECT_TRUE(first.prints("restart 1, round 1")) << first.err();
  EXPECT_TRUE(second.prints("restart 1, round 1")) << second.err();
  let_end();
  EXPECT_EQ(first.wait(), 0);
  EXPECT_EQ(second.wait(), 0);
}

// Row 7: stopping one node closes the rendezvous for all.
TEST_F(DdpRunNodes, ANodeThatItsUserStopsLeavesTheOthersTheirJob) {
  Process& first = start_node("1:2", 0, kStaysAndTells);
  Process& second = start_node("1:2", 1, kStaysAndTells);
  ASSERT_TRUE(first.prints("0 of 2"));
  ASSERT_TRUE(second.prints("1 of 2"));
  second.kill(SIGTERM);
  EXPECT_EQ(second.wait(), 128 + SIGTERM) << second.err();
  // Nothing failed, so nothing is charged.
  EXPECT_TRUE(first.prints("0 of 1 at")) << first.err();
  EXPECT_TRUE(first.prints("restart 0, round 1")) << first.out();
  let_end();
  EXPECT_EQ(first.wait(), 0) << first.err();
}

// Rows 9 and 43: whoever is ready first waits as long as it takes, and all end together.
TEST_F(DdpRunNodes, ANodeThatIsReadyWaitsForTheOthers) {
  Process& ready = start_node("2", 0, "echo done");
  Process& late = start_node("2", 1, kStaysAndTells);
  ASSERT_TRUE(ready.prints("done"));
  ASSERT_TRUE(late.prints("1 of 2"));
  EXPECT_FALSE(wait_until([&] { return ready.has_ended(); }, 300ms));
  let_end();
  EXPECT_EQ(ready.wait(), 0) << ready.err();
  EXPECT_EQ(late.wait(), 0) << late.err();
}

// Row 8: torchrun's other nodes only see that the rendezvous is closed.
TEST_F(DdpRunNodes, EveryNodeNamesTheFirstFailure) {
  const std::string script =
      "[ $RANK = 1 ] || exec sleep 100; [ $DDP_ROUND = 1 ] && exit 6; exit 7";
  Process& first = start_node("2", 0, script);
  Process& second = start_node("2", 1, script);
  EXPECT_EQ(first.wait(), 6) << first.err();
  EXPECT_EQ(second.wait(), 6) << second.err();
  // The whole report once, from the node of rank 0; a line from the others.
  EXPECT_THAT(first.err(), HasSubstr("rank      : 1 (local_rank: 0)\n  exitcode  : 6 "));
  EXPECT_THAT(second.err(), HasSubstr("rank 1 on " + host() + " failed: exit code 6"));
}

// Rows 4 and 5, too: nodes that were started with different rules.
TEST_F(DdpRunNodes, ANodeWithAnotherRuleIsRefused) {
  const auto node = [&](const Arguments& more) -> Process& {
    Arguments flags{"--nnodes",  "2:3", "--rdzv-endpoint", "127.0.0.1:" + std::to_string(port_),
                    "--rdzv-id", "job", "--rdzv-conf",     "is_host=false"};
    flags.insert(flags.end(), more.begin(), more.end());
    flags.insert(flags.end(), {"sh", "-c", kStaysAndTells});
    return start(flags);
  };
  Process& first = node({});
  ASSERT_TRUE(first.complains("1 missing")) << first.err();
  const std::vector<std::pair<Arguments, std::string>> rules{
      {{"--nnodes", "2"}, "--nnodes is 2 on H and 2:3 on H"},
      {{"--max-restarts", "2"}, "--max-restarts is 2 on H and 0 on H"},
      {{"--restart-on-start-failure"},
       "--restart-on-start-failure is given on H and not given on H"},
      {{"--max-no-progress", "9"}, "--max-no-progress is 9 on H and 3 on H"},
      {{"--join-timeout", "601"}, "--join-timeout is 601 s on H and 600 s on H"},
      {{"--last-call", "0.5"}, "--last-call is 0.5 s on H and 30 s on H"},
      {{"--shutdown-timeout", "31"}, "--shutdown-timeout is 31 s on H and 30 s on H"},
      {{"--scale-up-timeout", "61"}, "--scale-up-timeout is 61 s on H and 60 s on H"}};
  for (const auto& [flag, line] : rules) {
    Process& other = node(flag);
    EXPECT_EQ(other.wait(), kExitRefused) << flag.front();
    std::string expected;
    for (const char letter : line) expected += letter == 'H' ? host() : std::string(1, letter);
    EXPECT_THAT(other.err(), HasSubstr(expected + "; start every node of the job with the same"));
  }
  EXPECT_FALSE(first.has_ended());
}

}  // namespace
}  // namespace ddp::test
