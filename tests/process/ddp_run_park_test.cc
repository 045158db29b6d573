#include <signal.h>

#include <regex>
#include <set>
#include <string>

#include "tests/process/ddp_run_fixture.h"

namespace ddp::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// Workers that can take part in further rounds, under real ddp-run: who keeps its process, and what
// the others get. The worker is parking_worker, which trains nothing.
class DdpRunPark : public DdpRunTest {
 protected:
  struct Place {
    pid_t pid = 0;
    std::string line;
  };
  // What the worker of this rank has said in this round, if it has.
  static Place place(const std::string& out, int round, int rank) {
    const std::regex line("round " + std::to_string(round) + " rank " + std::to_string(rank) +
                          " of .* pid ([0-9]+) .*");
    std::smatch match;
    if (!std::regex_search(out, match, line)) return {};
    return {std::atoi(match[1].str().c_str()), match[0].str()};
  }
  // Waits for it. Never a number that kill() would take for more than one process.
  static Place place(Process& job, int round, int rank) {
    Place found;
    wait_until([&] {
      found = place(job.out(), round, rank);
      return found.pid > 1;
    });
    if (found.pid <= 1) throw std::runtime_error("no process number; " + job.err());
    return found;
  }
};

// Row 38: the others go on at once, in the processes that they have.
TEST_F(DdpRunPark, SurvivorsKeepTheirProcessAndTheLostRankIsReplaced) {
  Process& job =
      start({"--nproc-per-node", "3", "--max-restarts", "1", PARKING_WORKER, "park", "1"});
  std::vector<pid_t> pids;
  for (int rank = 0; rank < 3; ++rank) pids.push_back(place(job, 0, rank).pid);
  ::kill(pids[1], SIGKILL);
  EXPECT_EQ(job.wait(), 0) << job.err();
  for (int rank = 0; rank < 3; ++rank) {
    const Place now = place(job.out(), 1, rank);
    EXPECT_EQ(now.pid == pids[static_cast<std::size_t>(rank)], rank != 1) << now.line;
    EXPECT_THAT(now.line, HasSubstr("round 1 rank " + std::to_string(rank) + " of 3 local " +
                                    std::to_string(rank) + " restart 1 memory 1 of 3 "));
    EXPECT_THAT(now.line, HasSubstr("(rank 1 on " + host() + " failed: signal 9 (SIGKILL)"));
  }
}

TEST_F(DdpRunPark, AWorkerThatDoesNotParkInTimeIsReplacedLikeALostOne) {
  Process& job = start({"--nproc-per-node", "3", "--max-restarts", "1", "--shutdown-timeout", "5",
                        PARKING_WORKER, "stubborn", "1"});
  const pid_t first = place(job, 0, 0).pid;
  const pid_t stubborn = place(job, 0, 1).pid;
  ::kill(place(job, 0, 2).pid, SIGKILL);
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(place(job.out(), 1, 0).pid, first);
  EXPECT_NE(place(job.out(), 1, 1).pid, stubborn);
  EXPECT_THAT(job.err(), HasSubstr("restart 1 of 1"));
}

TEST_F(DdpRunPark, AParkedWorkerThatDiesIsReplacedAndNotCharged) {
  Process& job =
      start({"--nproc-per-node", "3", "--max-restarts", "1", PARKING_WORKER, "die", "1"});
  const pid_t survivor = place(job, 0, 2).pid;
  const pid_t dies = place(job, 0, 1).pid;
  ::kill(place(job, 0, 0).pid, SIGKILL);
  // A death that the agent sees after the next round has begun is a failure of that round.
  EXPECT_TRUE(wait_until([&] { return ::kill(dies, 0) != 0; })) << "not reaped";
  folder_.write("leave", "");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(place(job.out(), 1, 2).pid, survivor);
  EXPECT_THAT(place(job.out(), 1, 1).line, HasSubstr("restart 1 memory 1 of 3"));
}

// Row 31: it was started, and its libraries were loaded, long before it is needed.
TEST_F(DdpRunPark, AStandbyTakesTheLostWorkersPlace) {
  Process& job = start({"--nproc-per-node", "2", "--max-restarts", "1", "--standby", "1",
                        PARKING_WORKER, "park", "1"});
  place(job, 0, 0);
  const pid_t lost = place(job, 0, 1).pid;
  // It waits for orders when it sleeps: then it has said hello.
  pid_t standby = 0;
  ASSERT_TRUE(wait_until([&] {
    for (const pid_t pid : alive("parking_worker")) {
      const std::string environment = read_proc(pid, "environ");
      if (environment.find("DDP_STANDBY=1") != std::string::npos) standby = pid;
    }
    return standby > 1 && read_proc(standby, "stat").find(") S ") != std::string::npos;
  }));
  ::kill(lost, SIGKILL);
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(place(job.out(), 1, 1).pid, standby);
  EXPECT_EQ(place(job.out(), 1, 0).pid, place(job.out(), 0, 0).pid);
}

TEST_F(DdpRunPark, EveryRoundsFolderNamesTheLogsOfItsRanks) {
  Process& job = start({"--nproc-per-node", "2", "--max-restarts", "1", "--rdzv-id", "j",
                        "--log-dir", "logs", PARKING_WORKER, "park", "1"});
  place(job, 0, 0);
  ::kill(place(job, 0, 1).pid, SIGKILL);
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(folder_.read("logs/j/round_1/rank_0." + host() + ".out"),
              ContainsRegex("^round 0 rank 0 .*\n--- round 1, rank 0: .* ---\nround 1 rank 0 "));
  EXPECT_THAT(folder_.read("logs/j/round_1/rank_1." + host() + ".out"),
              ContainsRegex("^round 1 rank 1 "));
}

// Rows 15 and 29: hours on an idle cluster, and nothing that says where it hangs.
TEST_F(DdpRunPark, AHungWorkerIsEndedAndItsStacksAreInTheLog) {
  const Finished job = run_job({"--nproc-per-node", "1", "--progress-timeout", "2", "--log-dir",
                                "logs", "--rdzv-id", "j", PARKING_WORKER, "park", "1"});
  EXPECT_EQ(job.status, 128 + SIGKILL) << job.err;
  EXPECT_THAT(job.err, ContainsRegex("  cause     : no progress for [0-9.]+ s"));
  EXPECT_THAT(job.err, HasSubstr("ParkingWorker::receive() (parking_worker)"));
  const std::string log = folder_.read("logs/j/round_0/rank_0." + host() + ".err");
  EXPECT_THAT(log, HasSubstr("ParkingWorker::receive() (parking_worker)"));
  EXPECT_THAT(log, HasSubstr("--- end of stacks ---\n"));
}

TEST_F(DdpRunPark, NothingIsLeftOfParkedWorkersAndStandbysWhenTheJobIsStopped) {
  Process& job = start({"--nproc-per-node", "2", "--max-restarts", "1", "--standby", "2",
                        PARKING_WORKER, "park", "9"});
  place(job, 0, 0);
  ::kill(place(job, 0, 1).pid, SIGKILL);
  place(job, 1, 0);
  place(job, 1, 1);
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM) << job.err();
  EXPECT_TRUE(is_gone());
}

}  // namespace
}  // namespace ddp::test
