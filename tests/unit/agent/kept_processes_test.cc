// Workers that survive rounds, and standbys that wait for one.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <asio/io_context.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/process/round_processes.h"
#include "tests/support/event_loop.h"
#include "tests/support/process.h"
#include "tests/support/process_table.h"
#include "tests/support/screen_file.h"
#include "tests/support/temp_dir.h"

namespace ddp::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class KeptProcesses : public testing::Test {
 protected:
  void SetUp() override { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }
  void TearDown() override {
    while (!processes_->clear_all(Duration(2'000))) {
    }
  }

  void make(const std::string& how, int nproc, int standby = 0, const std::string& wrapper = "") {
    config::JobSpec spec;
    spec.job_id = "job";
    spec.node_id = fmt::format("y{}", ::getpid());
    spec.host = "here";
    spec.nproc = nproc_ = nproc;
    spec.standby = standby;
    spec.log_dir = (dir_.path() / "logs").string();
    spec.command = {PARKING_WORKER, how, "99"};
    if (!wrapper.empty()) spec.command = {"sh", "-c", wrapper, PARKING_WORKER, how, "99"};
    processes_ = std::make_unique<RoundProcesses>(
        io_, spec, screen_.pair(),
        RoundProcesses::Events{
            .on_exit = [this](const WorkerExit& exit) { exits_.push_back(exit); },
            .on_progress = [this](int local_rank, std::int64_t) { steps_.insert(local_rank); },
            .on_hello = [this](int local_rank, bool yes) { hellos_[local_rank] = yes; },
            .on_parked =
                [this](int local_rank, Round round, std::int64_t step) {
                  parked_[local_rank] = {round, step};
                },
            .on_committed =
                [this](int local_rank, Round round, std::int64_t step) {
                  committed_[local_rank] = {round, step};
                }});
  }

  // This node is the second of two; the other one has a worker.
  void start(Round number) {
    round_ = number;
    steps_.clear();
    parked_.clear();
    hellos_.clear();
    wire::RoundStart round;
    round.round = number;
    round.restarts = static_cast<int>(number);
    round.world_size = nproc_ + 1;
    round.group_rank = 1;
    round.members.push_back({"x", "other", "127.0.0.1", 1, 0});
    round.members.push_back({"y", "here", "127.0.0.1", nproc_, 1});
    round.master_addr = "127.0.0.1";
    round.reason = "reason " + std::to_string(number);
    EXPECT_TRUE(processes_->start(round).empty());
  }
  static std::string errors_of(Round round) { return fmt::format("errors of round {}\n", round); }
  // All workers have reported progress, and what they have written is in their files.
  bool all_report() {
    const auto has_said = [this](int local_rank) {
      return log(round_, fmt::format("rank_{}.here.out", local_rank + 1)).ends_with(")\n") &&
             log(round_, fmt::format("rank_{}.here.err", local_rank + 1))
                 .ends_with(errors_of(round_));
    };
    return test::run_until(io_, [&] {
      int count = 0;
      for (const int local_rank : steps_) count += has_said(local_rank) ? 1 : 0;
      return count == nproc_;
    });
  }
  bool park(const std::set<int>& expected) {
    processes_->signal(SIGTERM, "the round is over", expected);
    return test::run_until(io_, [&] { return parked_.size() == expected.size(); });
  }
  // Of this test's, with this in their environment.
  std::vector<pid_t> processes_with(const std::string& entry) {
    std::vector<pid_t> found;
    for (const pid_t pid : test::processes_with(entry)) {
      if (test::read_proc(pid, "environ").find(fmt::format("DDP_NODE_ID=y{}", ::getpid())) !=
          std::string::npos) {
        found.push_back(pid);
      }
    }
    return found;
  }
  // Whether a worker's child has become `sleep`. Until then it is in and out of execve, where a
  // process shows no environment for a moment: it would not be found.
  bool sleeps(const std::string& entry) {
    for (const pid_t pid : processes_with(entry)) {
      if (test::read_proc(pid, "cmdline").starts_with("sleep") &&
          !test::read_proc(pid, "environ").empty()) {
        return true;
      }
    }
    return false;
  }
  bool clear(const std::set<int>& keep) { return processes_->clear(keep, Duration(5'000)); }

  std::string screen() { return screen_.text(*processes_); }
  std::string log(Round round, const std::string& name) {
    screen_.wait_for_files(*processes_);
    return dir_.read("logs/job/round_" + std::to_string(round) + "/" + name);
  }
  // Of the worker that has said last in this file which process it is. Never a number that kill()
  // would take for more than one process.
  pid_t pid_in(Round round, const std::string& name) {
    std::string text;
    const bool there = test::run_until(io_, [&] {
      text = log(round, name);
      return text.ends_with(")\n");
    });
    const auto at = text.rfind(" pid ");
    const pid_t pid = there && at != std::string::npos ? std::atoi(text.c_str() + at + 5) : -1;
    if (pid <= 1) throw std::runtime_error("no process number in " + name);
    return pid;
  }
  static std::string environment_of(pid_t pid, const std::string& name) {
    std::istringstream variables(test::read_proc(pid, "environ"));
    for (std::string variable; std::getline(variables, variable, '\0');) {
      if (variable.starts_with(name + "=")) return variable.substr(name.size() + 1);
    }
    throw std::runtime_error("no " + name);
  }
  static std::string line(Round round, int rank, int nproc, pid_t pid) {
    return fmt::format(
        "round {} rank {} of {} local {} restart {} memory {} of {} pid {} "
        "(reason {})\n",
        round, rank, nproc + 1, rank - 1, round, round, nproc, pid, round);
  }

  test::TempDir dir_;
  asio::io_context io_;
  test::ScreenFile screen_{io_, dir_};
  int nproc_ = 0;
  Round round_ = kNoRound;
  std::vector<WorkerExit> exits_;
  std::set<int> steps_;
  std::map<int, bool> hellos_;
  std::map<int, std::pair<Round, std::int64_t>> parked_;
  std::map<int, std::pair<Round, std::int64_t>> committed_;
  std::unique_ptr<RoundProcesses> processes_;
};

TEST_F(KeptProcesses, ParkedWorkersKeepTheirProcessAndGetTheNextRoundsMemory) {
  make("park", 2);
  start(3);
  ASSERT_TRUE(all_report());
  EXPECT_THAT(hellos_, ElementsAre(testing::Pair(0, true), testing::Pair(1, true)));
  const pid_t first = pid_in(3, "rank_1.here.out");
  const pid_t second = pid_in(3, "rank_2.here.out");
  ASSERT_GT(first, 0);
  ASSERT_TRUE(park({0, 1}));
  EXPECT_EQ(parked_[0], std::make_pair(Round{3}, std::int64_t{40}));
  std::ofstream(environment_of(first, "TORCHELASTIC_ERROR_FILE")) << R"({"message": "of round 3"})";
  ASSERT_TRUE(clear({0, 1}));
  start(4);
  EXPECT_THAT(hellos_, ElementsAre(testing::Pair(0, true), testing::Pair(1, true)));
  ASSERT_TRUE(all_report());
  EXPECT_TRUE(exits_.empty());
  // Both rounds are in the file of the first, which the folder of the second names too.
  const std::string both =
      line(3, 1, 2, first) + "--- round 4, rank 1: reason 4 ---\n" + line(4, 1, 2, first);
  EXPECT_EQ(log(3, "rank_1.here.out"), both);
  EXPECT_EQ(log(4, "rank_1.here.out"), both);
  EXPECT_EQ(log(4, "rank_2.here.out"),
            line(3, 2, 2, second) + "--- round 4, rank 2: reason 4 ---\n" + line(4, 2, 2, second));
  EXPECT_THAT(log(4, "rank_2.here.err"),
              HasSubstr("--- round 4, rank 2: reason 4 ---\nerrors of "));
  EXPECT_THAT(screen(), HasSubstr("[here:1] round 4 rank 1"));
  EXPECT_THAT(screen(), Not(HasSubstr("---")));
  // Its last words are those of the round that it ends in.
  ::kill(first, SIGKILL);
  ASSERT_TRUE(test::run_until(io_, [this] { return exits_.size() == 1; }));
  EXPECT_THAT(exits_.front().stderr_tail, ElementsAre("errors of round 4"));
  EXPECT_FALSE(exits_.front().has_error_file);
  EXPECT_EQ(exits_.front().message, "");
}

TEST_F(KeptProcesses, AStoppedWorkerIsContinuedSoThatItCanPark) {
  make("park", 2);
  start(0);
  ASSERT_TRUE(all_report());
  const pid_t stopped = pid_in(0, "rank_1.here.out");
  ASSERT_EQ(::kill(stopped, SIGSTOP), 0);
  ASSERT_TRUE(park({0, 1}));
  ASSERT_TRUE(clear({0, 1}));
  start(1);
  ASSERT_TRUE(all_report());
  EXPECT_EQ(pid_in(1, "rank_1.here.out"), stopped);
}

TEST_F(KeptProcesses, AKilledWorkerIsReplacedBesideTheOneThatWaits) {
  make("park", 2);
  start(0);
  ASSERT_TRUE(all_report());
  const pid_t survivor = pid_in(0, "rank_1.here.out");
  ::kill(pid_in(0, "rank_2.here.out"), SIGKILL);
  ASSERT_TRUE(test::run_until(io_, [this] { return exits_.size() == 1; }));
  ASSERT_TRUE(park({0}));
  ASSERT_TRUE(clear({0}));
  start(1);
  ASSERT_TRUE(all_report());
  EXPECT_THAT(log(1, "rank_1.here.out"), HasSubstr(line(1, 1, 2, survivor)));
  const pid_t replaced = pid_in(1, "rank_2.here.out");
  EXPECT_EQ(log(1, "rank_2.here.out"), line(1, 2, 2, replaced));
  EXPECT_FALSE(std::filesystem::is_symlink(dir_.path() / "logs/job/round_1/rank_2.here.out"));
}

// Whoever has not parked, and what it has started, is gone before the next round; what a parked
// worker has started stays.
TEST_F(KeptProcesses, ClearKillsAllButWorkersThatHaveParkedAndTheirChildren) {
  make("stubborn", 2, 0, "setsid sleep 1000 & exec \"$0\" \"$@\"");
  start(0);
  ASSERT_TRUE(all_report());
  ASSERT_TRUE(test::run_until(io_, [this] { return sleeps("RANK=1") && sleeps("RANK=2"); }));
  const pid_t stays = pid_in(0, "rank_2.here.out");  // Rank 2 parks, rank 1 does not.
  const pid_t goes = pid_in(0, "rank_1.here.out");
  processes_->signal(SIGTERM, "over", {0, 1});
  ASSERT_TRUE(test::run_until(io_, [this] { return parked_.size() == 1; }));
  ASSERT_TRUE(clear({0, 1}));
  EXPECT_EQ(::kill(goes, 0), -1);
  EXPECT_EQ(::kill(stays, 0), 0);
  const auto children = processes_with("RANK=2");
  EXPECT_EQ(children.size(), 2u) << "the worker and its child";
  EXPECT_TRUE(processes_with("RANK=1").empty());
  start(1);
  ASSERT_TRUE(all_report());
  EXPECT_THAT(log(1, "rank_2.here.out"), HasSubstr(line(1, 2, 2, stays)));
}

TEST_F(KeptProcesses, AParkedWorkerThatDiesIsToldAndReplaced) {
  make("die", 1);
  start(0);
  ASSERT_TRUE(all_report());
  processes_->signal(0, "over", {0});
  ASSERT_TRUE(test::run_until(io_, [this] { return exits_.size() == 1; }));
  EXPECT_EQ(exits_.front().exit_code, 3);
  ASSERT_TRUE(clear({0}));
  start(1);
  ASSERT_TRUE(all_report());
  EXPECT_EQ(exits_.size(), 1u);
}

// Its exit must not be taken for that of the worker that has its place in the new round.
TEST_F(KeptProcesses, AParkedWorkerThatIsFoundDeadAtTheStartIsReplacedInSilence) {
  make("park", 1);
  start(0);
  ASSERT_TRUE(all_report());
  const pid_t pid = pid_in(0, "rank_1.here.out");
  ASSERT_TRUE(park({0}));
  ASSERT_TRUE(clear({0}));
  ::kill(pid, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  start(1);
  ASSERT_TRUE(all_report());
  EXPECT_TRUE(exits_.empty());
  EXPECT_THAT(screen(), HasSubstr("ddp-run: a parked process on here (pid " + std::to_string(pid) +
                                  ") ended with signal 9"));
  EXPECT_NE(pid_in(1, "rank_1.here.out"), pid);
}

TEST_F(KeptProcesses, AStandbyTakesThePlaceOfALostWorker) {
  make("park", 1, 1);
  start(0);
  ASSERT_TRUE(all_report());
  ASSERT_TRUE(test::run_until(io_, [this] { return !processes_with("DDP_STANDBY=1").empty(); }));
  const pid_t standby = processes_with("DDP_STANDBY=1").at(0);
  // It is used once it has said hello; until then this would start a worker of its own.
  ASSERT_TRUE(test::run_until(io_, [this] { return processes_->standbys_ready() == 1; }));
  ::kill(pid_in(0, "rank_1.here.out"), SIGKILL);
  ASSERT_TRUE(test::run_until(io_, [this] { return exits_.size() == 1; }));
  ASSERT_TRUE(clear({}));
  start(1);
  EXPECT_EQ(hellos_[0], true);
  ASSERT_TRUE(all_report());
  EXPECT_EQ(log(1, "rank_1.here.out"),
            "--- round 1, rank 1: reason 1 ---\n" + line(1, 1, 1, standby));
  // And the pool is filled again.
  EXPECT_TRUE(test::run_until(io_, [this] { return processes_->standbys_ready() == 1; }));
}

TEST_F(KeptProcesses, CommitRequestsGoToThoseThatAreAsked) {
  make("commit", 2);
  start(0);
  ASSERT_TRUE(all_report());
  processes_->request_commit({0, 1'000}, {1});
  // Whoever has parked has answered what came before.
  ASSERT_TRUE(park({0, 1}));
  ASSERT_EQ(committed_.size(), 1u);
  EXPECT_EQ(committed_[1], std::make_pair(Round{0}, std::int64_t{7}));
}

TEST_F(KeptProcesses, AHungWorkersStacksAreWrittenBeforeItIsKilled) {
  make("park", 1);
  start(0);
  ASSERT_TRUE(all_report());
  const pid_t pid = pid_in(0, "rank_1.here.out");
  ASSERT_TRUE(test::wait_until(
      [&] { return test::read_proc(pid, "stat").find(") S ") != std::string::npos; }));
  processes_->dump_stacks(0);
  processes_->kill(0, "no progress for 5 s");
  ASSERT_TRUE(test::run_until(io_, [this] { return exits_.size() == 1; }));
  EXPECT_EQ(exits_.front().signal, SIGKILL);
  EXPECT_EQ(exits_.front().cause, "no progress for 5 s");
  EXPECT_THAT(exits_.front().stderr_tail, ElementsAre("errors of round 0"));
  const std::string errors = log(0, "rank_1.here.err");
  EXPECT_THAT(errors, HasSubstr("--- stacks of process "));
  EXPECT_THAT(errors, HasSubstr("(parking_worker, state S"));
  EXPECT_THAT(errors, HasSubstr("ParkingWorker::"));
  EXPECT_THAT(errors, HasSubstr("recvmsg"));
  EXPECT_THAT(errors, HasSubstr("--- end of stacks ---\n"));
  EXPECT_THAT(screen(), HasSubstr("[here:1] --- end of stacks ---\n"));
}

TEST_F(KeptProcesses, TheStacksOfAStoppedWorkerAreReadToo) {
  make("park", 1);
  start(0);
  ASSERT_TRUE(all_report());
  const pid_t pid = pid_in(0, "rank_1.here.out");
  ::kill(pid, SIGSTOP);
  ASSERT_TRUE(test::wait_until(
      [&] { return test::read_proc(pid, "stat").find(") T ") != std::string::npos; }));
  processes_->dump_stacks(0);
  processes_->kill(0, "it stands still");
  ASSERT_TRUE(test::run_until(io_, [this] { return exits_.size() == 1; }));
  EXPECT_EQ(exits_.front().cause, "it stands still");
  EXPECT_THAT(log(0, "rank_1.here.err"), HasSubstr("(parking_worker, state T"));
  EXPECT_THAT(log(0, "rank_1.here.err"), HasSubstr("ParkingWorker::"));
}

}  // namespace
}  // namespace ddp::agent
