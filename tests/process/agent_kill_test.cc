#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstdlib>
#include <string>

#include "common/base/exit_codes.h"
#include "tests/process/agent_fixture.h"
#include "tests/support/sanitizer.h"

// Signals, deaths and readers that do not read: whatever happens to an agent, no process or file of
// the job remains.
namespace ddp::test {
namespace {

using testing::HasSubstr;

// Workers that ignore polite signals and have a child in a session of its own.
constexpr const char* kStubborn =
    "trap '' TERM INT HUP QUIT; setsid sh -c 'trap \"\" TERM INT HUP QUIT; echo child up; while :; "
    "do sleep 1000; done' & "
    "echo worker up; while :; do sleep 1000; done";

// Workers that end at once when told to.
constexpr const char* kPolite =
    "trap 'echo told; exit 0' TERM INT; echo up; while :; do sleep 0.01; done";

TEST_F(AgentTest, ASignalGoesToTheWorkersAndItsStatusToTheCaller) {
  for (const int number : {SIGTERM, SIGINT}) {
    config::JobSpec job = shell(kPolite);
    job.job_id += std::to_string(number);
    Agent& agent = start(job);
    ASSERT_TRUE(agent.process().prints("[here:0] up") && agent.process().prints("[here:1] up"));
    agent.process().kill(number);
    EXPECT_EQ(agent.wait(), 128 + number);
    EXPECT_EQ(agent.result()->exit_code, 128 + number);
    EXPECT_THAT(agent.process().out(), HasSubstr("[here:0] told\n"));
    EXPECT_THAT(agent.process().out(), HasSubstr("[here:1] told\n"));
  }
}

TEST_F(AgentTest, WorkersThatIgnoreTheSignalAreKilledAfterTheLimit) {
  config::JobSpec job = shell(kStubborn);
  job.rules.stop_timeout_ms = 100;
  Agent& agent = start(job);
  ASSERT_TRUE(agent.process().prints("[here:0] child up") &&
              agent.process().prints("[here:1] child up"));
  agent.process().kill(SIGTERM);
  EXPECT_EQ(agent.wait(), 128 + SIGTERM);
  EXPECT_TRUE(processes_with("DDP_TEST_JOB=" + mark_).empty())
      << "left behind by an agent that has ended";
}

TEST_F(AgentTest, ASecondSignalDoesNotWaitForTheLimit) {
  config::JobSpec job = shell(kStubborn);
  job.rules.stop_timeout_ms = 3'600'000;
  Agent& agent = start(job);
  ASSERT_TRUE(agent.process().prints("[here:0] worker up") &&
              agent.process().prints("[here:1] worker up"));
  agent.process().kill(SIGTERM);
  agent.process().kill(SIGINT);
  // Either order of arrival is right, but a SIGTERM behind the other one changes nothing at once.
  EXPECT_TRUE(wait_until([&] {
    if (agent.process().has_ended()) return true;
    agent.process().kill(SIGINT);
    return false;
  }));
  EXPECT_THAT(agent.wait(), testing::AnyOf(128 + SIGTERM, 128 + SIGINT));
}

TEST_F(AgentTest, AnIgnoredHangupStaysIgnored) {
  Agent& agent = start(shell(kPolite), {"sh", "-c", "trap '' HUP; exec \"$@\"", "sh"});
  ASSERT_TRUE(agent.process().prints("[here:0] up"));
  agent.process().kill(SIGHUP);
  agent.process().kill(SIGTERM);
  EXPECT_EQ(agent.wait(), 128 + SIGTERM);
}

TEST_F(AgentTest, NothingIsLeftWhenDdpRunIsKilled) {
  // A shell plays ddp-run.
  Agent& agent = start(shell(kStubborn), {"sh", "-c", "\"$@\" & wait", "sh"});
  ASSERT_TRUE(agent.process().prints("[here:0] child up") &&
              agent.process().prints("[here:1] child up"));
  agent.process().kill(SIGKILL);
  EXPECT_TRUE(is_gone());
}

TEST_F(AgentTest, AnAgentWhoseDdpRunIsGoneAlreadyStartsNothing) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  const UniqueFd result(ends[1]);
  const UniqueFd job = inherited_file(config::encode(shell("echo ran", 1)));
  const Finished agent = run({bin("ddp-agent"), "--job-fd", std::to_string(job.get()),
                              "--result-fd", std::to_string(result.get())});
  EXPECT_EQ(agent.status, kExitInternal);
  EXPECT_EQ(agent.out, "");
}

TEST_F(AgentTest, WorkersDieWithAKilledAgent) {
  // Without children of their own: those are left to ddp-run, the subreaper above.
  Agent& agent = start(shell("trap '' TERM; echo up; exec sleep 1000"));
  ASSERT_TRUE(agent.process().prints("[here:0] up") && agent.process().prints("[here:1] up"));
  agent.process().kill(SIGKILL);
  EXPECT_EQ(agent.wait(), 128 + SIGKILL);
  EXPECT_TRUE(is_gone());
}

TEST_F(AgentTest, AnOrphanThatEndsIsReapedWhileTheWorkerRuns) {
  Agent& agent = start(shell("(setsid sh -c 'echo orphan ${$}' &); exec sleep 1000", 1));
  ASSERT_TRUE(agent.process().prints("orphan "));
  const std::string out = agent.process().out();
  const pid_t orphan = std::atoi(out.c_str() + out.find("orphan ") + 7);
  ASSERT_GT(orphan, 1);
  EXPECT_TRUE(wait_until([&] { return ::kill(orphan, 0) != 0; })) << "it is a zombie";
  agent.process().kill(SIGTERM);
  EXPECT_EQ(agent.wait(), 128 + SIGTERM);
}

TEST_F(AgentTest, AKilledWorkerIsReplacedAndItsChildrenAreGone) {
  config::JobSpec job = shell(
      "[ $DDP_ROUND = 0 ] || exit 0; setsid sh -c 'echo child ${$}; while :; do sleep 1000; done' "
      "& "
      "echo worker ${$}; wait",
      1);
  job.rules.max_restarts = 1;
  Agent& agent = start(job);
  ASSERT_TRUE(agent.process().prints("worker ") && agent.process().prints("child "));
  const std::string out = agent.process().out();
  ::kill(std::atoi(out.c_str() + out.find("worker ") + 7), SIGKILL);
  EXPECT_EQ(agent.wait(), 0) << agent.process().err();
  EXPECT_TRUE(processes_with("DDP_TEST_JOB=" + mark_).empty());
  EXPECT_THAT(agent.process().err(), HasSubstr("round 1: rank 0 on here failed: signal 9"));
}

TEST_F(AgentTest, AReaderThatIsGoneDoesNotEndTheJob) {
  // head ends after the first line; the agent's output goes nowhere from then on.
  const TempDir dir;
  config::JobSpec job =
      shell("for i in $(seq 5000); do echo a line of output number $i; done; touch $0/$RANK");
  job.command.push_back(dir.path());
  Agent& agent = start(job, {"bash", "-c", "\"$@\" | head -1; exit ${PIPESTATUS[0]}", "bash"});
  EXPECT_EQ(agent.wait(), 0) << agent.process().err();
  EXPECT_TRUE(std::filesystem::exists(dir.path() / "0"));
  EXPECT_TRUE(std::filesystem::exists(dir.path() / "1"));
}

TEST_F(AgentTest, AReaderThatNeverReadsDoesNotHoldTheAgentForEver) {
  // More output than the pipe and the agent's queue take; the signal still ends it all.
  const TempDir dir;
  const std::string fifo = dir.path() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const UniqueFd reader(::open(fifo.c_str(), O_RDWR | O_CLOEXEC));
  Agent& agent =
      start(shell("echo up >&2; seq 600000"), {"sh", "-c", "exec \"$@\" > " + fifo, "sh"});
  ASSERT_TRUE(agent.process().complains("[here:0] up"));
  ASSERT_TRUE(agent.process().complains("[here:1] up"));
  agent.process().kill(SIGTERM);
  EXPECT_EQ(agent.wait(), 128 + SIGTERM);
}

TEST_F(AgentTest, TheAgentStaysSmall) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer's memory counts, too";
  Agent& agent = start(shell("echo up; exec sleep 1000"));
  ASSERT_TRUE(agent.process().prints("[here:0] up") && agent.process().prints("[here:1] up"));
  const std::string status = read_proc(agent.process().pid(), "status");
  const int kilobytes = std::atoi(status.c_str() + status.find("VmHWM:") + 6);
  EXPECT_GT(kilobytes, 0);
  EXPECT_LT(kilobytes, 15'000);
  agent.process().kill(SIGTERM);
  EXPECT_EQ(agent.wait(), 128 + SIGTERM);
}

}  // namespace
}  // namespace ddp::test
