#include "tests/process/ddp_run_fixture.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;

// A worker with company: a child, a grandchild in a session of its own, and one whose parent has
// gone.
const char* const kFamily =
    "sleep 1000 &\n"
    "setsid sh -c 'sleep 1000 & sleep 1000' &\n"
    "(setsid sleep 1000 &)\n"
    "echo $$ > $OUT/pid.$RANK.$TORCHELASTIC_RESTART_COUNT\n";

class DdpRunKill : public DdpRunTest {
 protected:
  // Stays for ever in the first round and ends at once in later ones, after writing its rank down.
  std::string script() {
    return folder_.script(
        "worker.sh", std::string(kFamily) +
                         "if [ $TORCHELASTIC_RESTART_COUNT -gt 0 ]; then echo done; exit 0; fi\n"
                         "sleep 1000\n");
  }
  std::string name(int rank, int restarts) const {
    return "pid." + std::to_string(rank) + "." + std::to_string(restarts);
  }
  pid_t the_agent() {
    EXPECT_TRUE(wait_until([this] { return alive("ddp-agent").size() == 1; }));
    return alive("ddp-agent").at(0);
  }
  // Workers and their company: 2 + 4 processes each, at least.
  void wait_for_workers(int first_rank, int count) {
    for (int rank = first_rank; rank < first_rank + count; ++rank) pid_in(name(rank, 0));
    EXPECT_TRUE(
        wait_until([&] { return alive("sleep").size() >= static_cast<std::size_t>(5 * count); }));
  }
};

TEST_F(DdpRunKill, WorkerWithoutRestarts) {
  Process& job = start({"--nproc-per-node", "2", script()});
  wait_for_workers(0, 2);
  ::kill(pid_in(name(1, 0)), SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL) << job.err();
  EXPECT_TRUE(is_gone());
  EXPECT_THAT(job.err(), HasSubstr("Signal 9 (SIGKILL)"));
}

TEST_F(DdpRunKill, WorkerWithRestarts) {
  Process& job = start({"--nproc-per-node", "2", "--max-restarts", "1", script()});
  wait_for_workers(0, 2);
  ::kill(pid_in(name(1, 0)), SIGKILL);
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("[" + host() + ":0] done\n"));
  EXPECT_THAT(job.out(), HasSubstr("[" + host() + ":1] done\n"));
}

TEST_F(DdpRunKill, AgentWithoutRestarts) {
  Process& job = start({"--nproc-per-node", "2", script()});
  wait_for_workers(0, 2);
  ::kill(the_agent(), SIGKILL);
  EXPECT_EQ(job.wait(), 72) << job.err();
  EXPECT_TRUE(is_gone());
}

TEST_F(DdpRunKill, AgentWithRestarts) {
  Process& job = start({"--nproc-per-node", "2", "--max-restarts", "1", script()});
  wait_for_workers(0, 2);
  const std::vector<pid_t> before = alive("sleep");
  ::kill(the_agent(), SIGKILL);
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("was lost: signal 9 (SIGKILL); starting another"));
  EXPECT_FALSE(before.empty());
}

TEST_F(DdpRunKill, AgentOfOneNodeOfTwo) {
  const int port = free_port();
  Process& first = start(node(2, port, {"--max-restarts", "1", "--node-rank", "0", script()}));
  ASSERT_TRUE(wait_until([this] { return alive("ddp-agent").size() == 1; }));
  const pid_t first_agent = the_agent();
  Process& second = start(node(2, port, {"--max-restarts", "1", "--node-rank", "1", script()}));
  wait_for_workers(0, 2);
  for (const pid_t agent : alive("ddp-agent")) {
    if (agent != first_agent) ::kill(agent, SIGKILL);
  }
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
}

TEST_F(DdpRunKill, DdpRunLeavesNothing) {
  Process& job = start({"--nproc-per-node", "2", "--max-restarts", "3", script()});
  wait_for_workers(0, 2);
  job.kill(SIGKILL);
  EXPECT_TRUE(is_gone());
}

TEST_F(DdpRunKill, DdpRunOfTheHostingNodeStartedAgain) {
  const int port = free_port();
  const Arguments flags0 = node(2, port, {"--max-restarts", "1", "--node-rank", "0", script()});
  Process& host = start(flags0);
  Process& other = start(node(2, port, {"--max-restarts", "1", "--node-rank", "1", script()}));
  wait_for_workers(0, 2);
  host.kill(SIGKILL);
  ASSERT_EQ(host.wait(), 128 + SIGKILL);
  Process& again = start(flags0);
  EXPECT_EQ(again.wait(), 0) << again.err();
  EXPECT_EQ(other.wait(), 0) << other.err();
  EXPECT_THAT(again.out(), HasSubstr("done\n"));
  EXPECT_THAT(other.out(), HasSubstr("done\n"));
}

TEST_F(DdpRunKill, DdpRunOfTheOtherNodeStartedAgain) {
  const int port = free_port();
  Process& host = start(node(2, port, {"--max-restarts", "1", "--node-rank", "0", script()}));
  const Arguments flags1 = node(2, port, {"--max-restarts", "1", "--node-rank", "1", script()});
  Process& other = start(flags1);
  wait_for_workers(0, 2);
  other.kill(SIGKILL);
  ASSERT_EQ(other.wait(), 128 + SIGKILL);
  Process& again = start(flags1);
  EXPECT_EQ(host.wait(), 0) << host.err();
  EXPECT_EQ(again.wait(), 0) << again.err();
}

TEST_F(DdpRunKill, SurvivorGivesUpWhenTheRendezvousStaysAway) {
  const int port = free_port();
  Process& host = start(node(2, port, {"--max-restarts", "1", "--node-rank", "0", script()}));
  Process& other = start(
      node(2, port,
           {"--max-restarts", "1", "--node-rank", "1", "--coordinator-timeout", "0.5", script()}));
  wait_for_workers(0, 2);
  host.kill(SIGKILL);
  EXPECT_EQ(other.wait(), 71) << other.err();
  EXPECT_THAT(other.err(), HasSubstr("was lost and did not come back"));
}

class DdpRunSignal : public DdpRunKill, public testing::WithParamInterface<int> {};

TEST_P(DdpRunSignal, ReachesTheWorkersAndEndsTheJob) {
  const int signal = GetParam();
  Process& job = start({"--nproc-per-node", "2", "--max-restarts", "3",
                        folder_.script("trap.sh",
                                       "trap 'echo $RANK got it; exit 0' TERM INT HUP QUIT\n"
                                       "echo $$ > $OUT/pid.$RANK.0\n"
                                       "while :; do sleep 0.05; done\n")});
  pid_in(name(0, 0));
  pid_in(name(1, 0));
  job.kill(signal);
  EXPECT_EQ(job.wait(), 128 + signal) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("0 got it\n"));
  EXPECT_THAT(job.out(), HasSubstr("1 got it\n"));
}

INSTANTIATE_TEST_SUITE_P(Handled, DdpRunSignal, testing::Values(SIGTERM, SIGINT, SIGHUP, SIGQUIT));

TEST_F(DdpRunKill, StubbornWorkersAreKilledAfterTheLimit) {
  Process& job = start({"--shutdown-timeout", "0.2", "sh", "-c",
                        "trap '' TERM; echo ${$} > $OUT/pid.0.0; while :; do sleep 0.05; done"});
  pid_in(name(0, 0));
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM) << job.err();
}

TEST_F(DdpRunKill, ASecondSignalKillsAtOnce) {
  Process& job = start(
      {"--shutdown-timeout", "1000", "sh", "-c",
       "trap 'echo ${$} > $OUT/got' TERM; echo ${$} > $OUT/pid.0.0; while :; do sleep 0.05; done"});
  pid_in(name(0, 0));
  job.kill(SIGTERM);
  file("got");
  // Those that come within three seconds are the same request.
  const auto ask_again = [&] {
    if (job.has_ended()) return true;
    job.kill(SIGTERM);
    return false;
  };
  EXPECT_TRUE(wait_until(ask_again));
  EXPECT_EQ(job.wait(), 128 + SIGTERM) << job.err();
}

// As `systemctl stop`, a closed terminal and most schedulers do it: to each process, or twice.
TEST_F(DdpRunKill, ASignalToTheAgentAndToDdpRunLeavesTimeForTheLastCheckpoint) {
  for (const bool to_agent : {true, false}) {
    const std::string saved = to_agent ? "saved.1" : "saved.2";
    Process& job = start({"sh", "-c",
                          "trap 'sleep 0.3; echo > $OUT/" + saved +
                              "; exit 0' TERM; echo $PPID > $OUT/pid.0." + (to_agent ? "1" : "2") +
                              "; while :; do sleep 0.02; done"});
    const pid_t agent = pid_in(name(0, to_agent ? 1 : 2));
    if (to_agent) {
      ::kill(agent, SIGTERM);
    } else {
      job.kill(SIGTERM);
    }
    job.kill(SIGTERM);
    EXPECT_EQ(job.wait(), 128 + SIGTERM) << job.err();
    EXPECT_TRUE(std::filesystem::exists(folder_.path() / saved)) << saved;
  }
}

TEST_F(DdpRunKill, SignalWhileNodesAreMissing) {
  Process& job = start(node(2, free_port(), {"true"}));
  ASSERT_TRUE(job.complains("1 of 2"));
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM) << job.err();
}

// The host cannot leave without ending the job for the others, and says so.
TEST_F(DdpRunKill, SignalToTheHostEndsTheOtherNodes) {
  const int port = free_port();
  Process& host = start(node(2, port, {"--node-rank", "0", script()}));
  Process& other =
      start(node(2, port, {"--node-rank", "1", "--coordinator-timeout", "1000", script()}));
  wait_for_workers(0, 2);
  host.kill(SIGTERM);
  EXPECT_EQ(host.wait(), 128 + SIGTERM) << host.err();
  EXPECT_EQ(other.wait(), 128 + SIGTERM) << other.err();
}

}  // namespace
}  // namespace ddp::test
