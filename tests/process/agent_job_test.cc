#include <set>
#include <sstream>
#include <string>

#include "common/base/exit_codes.h"
#include "tests/process/agent_fixture.h"
#include "tests/support/listener.h"

// What an agent does in the life of a job: workers, restarts, results.
namespace ddp::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

TEST_F(AgentTest, RunsItsWorkersToTheEnd) {
  Agent& agent = start(shell("echo hello from $RANK of $WORLD_SIZE; echo oops >&2"));
  EXPECT_EQ(agent.wait(), 0) << agent.process().err();
  ASSERT_TRUE(agent.result().has_value()) << agent.result().error().message;
  EXPECT_EQ(agent.result()->exit_code, 0);
  EXPECT_EQ(agent.result()->last_round, 0);
  EXPECT_EQ(agent.result()->restarts, 0);
  for (const std::string rank : {"0", "1"}) {
    EXPECT_THAT(agent.process().out(),
                HasSubstr("[here:" + rank + "] hello from " + rank + " of 2\n"));
    EXPECT_THAT(agent.process().err(), HasSubstr("[here:" + rank + "] oops\n"));
  }
  EXPECT_THAT(agent.process().err(), Not(HasSubstr("round")));
}

TEST_F(AgentTest, OneWorkerWithoutPrefixPrintsAsOnItsOwn) {
  config::JobSpec job = shell("printf 'no newline'", 1);
  job.single_node_prefix = false;
  Agent& agent = start(job);
  EXPECT_EQ(agent.wait(), 0);
  EXPECT_EQ(agent.process().out(), "no newline");
}

// What it would send on, with the host's name and more, would be too long for one message.
TEST_F(AgentTest, AMessageOfAnyLengthFromAWorkerDoesNoHarm) {
  Agent& agent =
      start(shell("exec /usr/bin/python3 -c \"\n"
                  "import json, os, socket, struct, sys\n"
                  "frame = json.dumps({'type': 'error', 'message': 'x' * (2**24 - 100)})\n"
                  "channel = socket.socket(fileno=int(os.environ['DDP_CONTROL_FD']))\n"
                  "channel.sendall(struct.pack('<I', len(frame)) + frame.encode())\n"
                  "sys.exit(3)\"",
                  1));
  EXPECT_EQ(agent.wait(), 3) << agent.process().err();
}

TEST_F(AgentTest, TwoNodesMakeOneWorldAndReachTheStore) {
  config::JobSpec job = shell(
      "echo $GROUP_RANK/$GROUP_WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT");
  job.rules.min_nodes = job.rules.max_nodes = 2;
  job.node_rank = 1;
  job.node_id = "b";
  job.host = "nodeb";
  Agent& second = start(job);
  job.node_rank = 0;
  job.node_id = "a";
  job.host = "nodea";
  job.nproc = 1;
  Agent& first = start(job);
  EXPECT_EQ(first.wait(), 0) << first.process().err();
  EXPECT_EQ(second.wait(), 0) << second.process().err();
  const std::string store = "127.0.0.1:" + std::to_string(port_) + "\n";
  EXPECT_EQ(first.process().out(), "[nodea:0] 0/2 0/1 " + store);
  EXPECT_THAT(second.process().out(), HasSubstr("[nodeb:1] 1/2 0/2 " + store));
  EXPECT_THAT(second.process().out(), HasSubstr("[nodeb:2] 1/2 1/2 " + store));
}

TEST_F(AgentTest, TheFirstFailureIsTheResult) {
  Agent& agent = start(shell("[ $RANK = 1 ] || exec sleep 1000; echo 'the cause' >&2; exit 37"));
  EXPECT_EQ(agent.wait(), 37);
  ASSERT_TRUE(agent.result().has_value());
  EXPECT_EQ(agent.result()->exit_code, 37);
  EXPECT_THAT(agent.result()->report, HasSubstr("the cause"));
  EXPECT_THAT(agent.result()->report, ContainsRegex("exitcode *: 37"));
}

TEST_F(AgentTest, AWorkerKilledBySignalIs128AndTheSignal) {
  EXPECT_EQ(start(shell("[ $RANK = 1 ] || exec sleep 1000; kill -SEGV ${$}")).wait(),
            128 + SIGSEGV);
}

TEST_F(AgentTest, ARestartIsAnnouncedAndCounted) {
  config::JobSpec job =
      shell("echo $DDP_ROUND $TORCHELASTIC_RESTART_COUNT; [ $DDP_ROUND = 2 ] || exit 5");
  job.rules.max_restarts = 3;
  const TempDir logs;
  job.log_dir = logs.path();
  Agent& agent = start(job);
  EXPECT_EQ(agent.wait(), 0) << agent.process().err();
  EXPECT_EQ(agent.result()->restarts, 2);
  EXPECT_EQ(agent.result()->last_round, 2);
  EXPECT_THAT(agent.process().err(),
              ContainsRegex("ddp-run: round 1: rank [01] on here failed: exit code 5"));
  EXPECT_THAT(agent.process().err(),
              ContainsRegex("ddp-run: round 2: rank [01] on here failed: exit code 5"));
  EXPECT_THAT(agent.process().out(), HasSubstr("[here:1] 2 2\n"));
  EXPECT_EQ(logs.read(mark_ + "/round_2/rank_1.here.out"), "2 2\n");
  EXPECT_EQ(logs.read(mark_ + "/round_2/rank_1.here.err"), "");
}

TEST_F(AgentTest, TheMessageOfATorchErrorFileIsInTheReport) {
  config::JobSpec job = shell(
      "echo '{\"message\":{\"message\":\"ValueError: bad batch\"}}' > $TORCHELASTIC_ERROR_FILE; "
      "exit 1",
      1);
  const TempDir logs;
  job.log_dir = logs.path();
  Agent& agent = start(job);
  EXPECT_EQ(agent.wait(), 1);
  EXPECT_THAT(agent.result()->report, HasSubstr("ValueError: bad batch"));
}

TEST_F(AgentTest, AMissingProgramIs127AndNotRetried) {
  config::JobSpec job = spec({"/no/such/program"});
  job.rules.max_restarts = 3;
  Agent& agent = start(job);
  EXPECT_EQ(agent.wait(), kExitNotFound);
  EXPECT_EQ(agent.result()->restarts, 0);
  EXPECT_THAT(agent.result()->report + agent.result()->summary,
              HasSubstr("/no/such/program: no such program"));
}

TEST_F(AgentTest, ASuccessorGoesOnWithTheNumbersOfTheLostAgent) {
  config::JobSpec job = shell("echo $DDP_ROUND $TORCHELASTIC_RESTART_COUNT", 1);
  job.rules.max_restarts = 9;
  job.single_node_prefix = false;
  Agent& agent = start(job, {}, {"--last-round", "6", "--restarts", "2"});
  EXPECT_EQ(agent.wait(), 0) << agent.process().err();
  // The coordinator is another one too, and its loss is charged.
  EXPECT_EQ(agent.process().out(), "7 3\n");
}

TEST_F(AgentTest, NobodyAtTheEndpointEndsAfterTheJoinTimeout) {
  config::JobSpec job = shell("exit 0");
  job.coordinator_port = free_port();
  job.rules.join_timeout_ms = 300;
  Agent& agent = start(job);
  EXPECT_EQ(agent.wait(), kExitJoinTimeout);
  EXPECT_THAT(agent.result()->summary,
              HasSubstr("127.0.0.1:" + std::to_string(job.coordinator_port)));
}

TEST_F(AgentTest, WorkersStopWhenTheCoordinatorIsGoneForGood) {
  config::JobSpec job = shell("echo up; exec sleep 1000");
  job.coordinator_timeout_ms = 200;
  Agent& agent = start(job);
  ASSERT_TRUE(agent.process().prints("[here:1] up"));
  rendezvous_->kill(SIGKILL);
  EXPECT_EQ(agent.wait(), kExitCoordinatorLost) << agent.process().err();
}

TEST_F(AgentTest, ANodeThatIsRefusedSaysWhy) {
  Agent& first = start(shell("exit 0", 1));
  EXPECT_EQ(first.wait(), 0);
  config::JobSpec job = shell("exit 0", 1);
  job.node_id = "late";
  Agent& late = start(job);
  EXPECT_EQ(late.wait(), kExitRefused);
  EXPECT_THAT(late.result()->summary, HasSubstr("over"));
}

TEST(AgentCommandLine, BadInputHasALineAndAStatus) {
  EXPECT_EQ(run({bin("ddp-agent"), "--help"}).status, 0);
  const Finished usage = run({bin("ddp-agent"), "--nonsense", "1"});
  EXPECT_EQ(usage.status, kExitUsage);
  EXPECT_EQ(usage.err, "ddp-agent: --nonsense: unknown argument\n");
  const UniqueFd job = inherited_file("{no json");
  const std::string number = std::to_string(job.get());
  const Finished broken = run({bin("ddp-agent"), "--job-fd", number, "--result-fd", number});
  EXPECT_EQ(broken.status, kExitInternal);
  EXPECT_THAT(broken.err, HasSubstr("ddp-agent: job description: "));
}

}  // namespace
}  // namespace ddp::test
