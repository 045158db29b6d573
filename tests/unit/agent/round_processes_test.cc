#include "agent/process/round_processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <asio/io_context.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/process/descendants.h"
#include "tests/support/event_loop.h"
#include "tests/support/process.h"
#include "tests/support/screen_file.h"
#include "tests/support/temp_dir.h"

namespace ddp::agent {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

bool exists(pid_t pid) { return ::kill(pid, 0) == 0; }

bool no_children() {
  return ::waitid(P_ALL, 0, nullptr, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD;
}

wire::RoundStart round_of(int nproc, Round number = 3) {
  wire::RoundStart round;
  round.round = number;
  round.world_size = nproc + 1;
  round.group_rank = 1;
  round.members = {{"x", "other", "127.0.0.1", 1, 0}, {"y", "here", "127.0.0.1", nproc, 1}};
  round.master_addr = "127.0.0.1";
  round.master_port = 1;
  return round;
}

// Workers are shell commands; what they say and how they end is collected.
class RoundProcessesTest : public testing::Test {
 protected:
  void SetUp() override { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }
  void TearDown() override {
    while (!processes_->clear({}, Duration(2'000))) {
    }
    EXPECT_TRUE(no_children());
  }

  std::vector<RoundProcesses::StartFailure> start(std::vector<std::string> command, int nproc = 1,
                                                  Round number = 3) {
    config::JobSpec spec;
    spec.job_id = "job";
    spec.host = "here";
    spec.nproc = nproc;
    spec.log_dir = (dir_.path() / "logs").string();
    spec.command = std::move(command);
    if (!processes_) {
      RoundProcesses::Events events;
      events.on_exit = [this](const WorkerExit& exit) {
        exits_[exit.local_rank] = exit;
        order_.push_back(exit.local_rank);
      };
      events.on_progress = [this](int local_rank, std::int64_t step) { steps_[local_rank] = step; };
      processes_ = std::make_unique<RoundProcesses>(io_, spec, screen_.pair(), events);
    }
    return processes_->start(round_of(nproc, number));
  }

  std::vector<RoundProcesses::StartFailure> start_shell(const std::string& script, int nproc = 1) {
    return start({"sh", "-c", script}, nproc);
  }

  bool wait_for_exits(std::size_t count) {
    return test::run_until(io_, [&] { return exits_.size() == count; });
  }

  std::string screen() { return screen_.text(*processes_); }
  std::string log(const std::string& name) {
    screen_.wait_for_files(*processes_);
    return dir_.read("logs/job/round_3/" + name);
  }

  // The number that a worker has written to its log.
  pid_t pid_in(const std::string& name) {
    std::string text;
    const bool there = test::run_until(io_, [&] {
      text = log(name);
      return text.find('\n') != std::string::npos;
    });
    return there ? std::stoi(text) : -1;
  }

  test::TempDir dir_;
  asio::io_context io_;
  test::ScreenFile screen_{io_, dir_};
  std::map<int, WorkerExit> exits_;
  std::vector<int> order_;  // Of the exits: local ranks.
  std::map<int, std::int64_t> steps_;
  std::unique_ptr<RoundProcesses> processes_;
};

TEST_F(RoundProcessesTest, TellsHowEachWorkerEndedWithItsLastWords) {
  ASSERT_TRUE(
      start_shell("echo out; echo err$LOCAL_RANK >&2; printf cut >&2; exit $((LOCAL_RANK + 7))", 2)
          .empty());
  ASSERT_TRUE(wait_for_exits(2));
  for (int local_rank = 0; local_rank < 2; ++local_rank) {
    const WorkerExit& exit = exits_.at(local_rank);
    EXPECT_EQ(exit.exit_code, 7 + local_rank);
    EXPECT_EQ(exit.signal, 0);
    EXPECT_GT(exit.pid, 0);
    EXPECT_GT(exit.time_ms, 1'600'000'000'000);
    const std::string rank = std::to_string(local_rank + 1);
    EXPECT_THAT(exit.stderr_tail, ElementsAre("err" + std::to_string(local_rank), "cut"));
    EXPECT_EQ(exit.log_path,
              (dir_.path() / ("logs/job/round_3/rank_" + rank + ".here.err")).string());
    EXPECT_EQ(log("rank_" + rank + ".here.out"), "out\n");
    EXPECT_EQ(log("rank_" + rank + ".here.err"), "err" + std::to_string(local_rank) + "\ncut");
    EXPECT_THAT(screen(), HasSubstr("[here:" + rank + "] cut\n"));
  }
}

TEST_F(RoundProcessesTest, OutputOfAWorkerThatEndsAtOnceIsComplete) {
  for (int i = 0; i < 30; ++i) {
    exits_.clear();
    ASSERT_TRUE(start({"seq", "2000"}).empty());
    ASSERT_TRUE(wait_for_exits(1));
    ASSERT_TRUE(processes_->clear({}, Duration(2'000)));
  }
  const std::string shown = screen();
  EXPECT_EQ(std::count(shown.begin(), shown.end(), '\n'), 30 * 2'000);
}

TEST_F(RoundProcessesTest, EachWorkerThatCannotBeStartedIsNamed) {
  const auto failures = start({"/no/such/program"}, 2);
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_EQ(failures[1].local_rank, 1);
  EXPECT_EQ(failures[1].status, 127);
  EXPECT_THAT(failures[1].why, HasSubstr("/no/such/program"));
  EXPECT_TRUE(processes_->clear({}, Duration(0)));
}

TEST_F(RoundProcessesTest, ASignalReachesTheWholeGroupAndWakesTheStopped) {
  ASSERT_TRUE(
      start_shell("trap 'exit 5' TERM; sh -c 'echo ${$}; exec sleep 1000' & kill -STOP ${$}; wait")
          .empty());
  const pid_t child = pid_in("rank_1.here.out");
  ASSERT_GT(child, 0);
  ASSERT_TRUE(test::run_until(io_, [] {
    siginfo_t info{};
    return ::waitid(P_ALL, 0, &info, WSTOPPED | WNOHANG) == 0 && info.si_pid != 0;
  }));
  processes_->signal(SIGTERM, "");
  ASSERT_TRUE(wait_for_exits(1));
  EXPECT_EQ(exits_.at(0).exit_code, 5);
  EXPECT_TRUE(test::run_until(io_, [&] {
    processes_->reap_orphans();
    return !exists(child);
  }));
}

TEST_F(RoundProcessesTest, ClearKillsGrandchildrenThatTookASessionOfTheirOwn) {
  ASSERT_TRUE(start_shell("setsid sh -c 'trap \"\" TERM HUP INT; echo ${$}; sleep 1000; :' & wait")
                  .empty());
  const pid_t grandchild = pid_in("rank_1.here.out");
  ASSERT_GT(grandchild, 0);
  processes_->signal(SIGKILL, "");
  ASSERT_TRUE(wait_for_exits(1));
  EXPECT_EQ(exits_.at(0).signal, SIGKILL);
  EXPECT_TRUE(exists(grandchild));
  EXPECT_TRUE(processes_->clear({}, Duration(5'000)));
  EXPECT_FALSE(exists(grandchild));
  EXPECT_TRUE(no_children()) << "zombies are left";
}

TEST_F(RoundProcessesTest, AGrandchildThatKeepsThePipeDoesNotDelayTheExit) {
  ASSERT_TRUE(start_shell("(while :; do echo noise; done) & echo last; exit 4").empty());
  ASSERT_TRUE(wait_for_exits(1));
  EXPECT_EQ(exits_.at(0).exit_code, 4);
  EXPECT_TRUE(processes_->clear({}, Duration(5'000)));
  EXPECT_THAT(log("rank_1.here.out"), HasSubstr("last\n"));
}

TEST_F(RoundProcessesTest, OrphansThatEndWhileTheWorkerRunsAreReaped) {
  ASSERT_TRUE(start_shell("(setsid true &) ; (setsid true &); echo 1; sleep 1000").empty());
  ASSERT_EQ(pid_in("rank_1.here.out"), 1);
  // Both have come to this process and go away although the worker still runs.
  EXPECT_TRUE(test::run_until(io_, [&] {
    processes_->reap_orphans();
    return ended_child() == 0;
  }));
  EXPECT_TRUE(exits_.empty());
}

TEST_F(RoundProcessesTest, AnOrphanBehindAWorkerThatHasEndedIsReapedAfterIt) {
  ASSERT_TRUE(start_shell("(setsid true &); exit 3").empty());
  ASSERT_TRUE(test::wait_until([] { return living_children({}).empty(); }));
  processes_->reap_orphans();
  EXPECT_TRUE(exits_.empty()) << "reap_orphans() leaves workers alone";
  ASSERT_TRUE(wait_for_exits(1));
  EXPECT_EQ(exits_.at(0).exit_code, 3) << "nobody else has taken its status";
  EXPECT_TRUE(test::run_until(io_, [] { return no_children(); }));
}

// The root cause of a failure is often told by which worker ended first.
TEST_F(RoundProcessesTest, WorkersAreToldInTheOrderInWhichTheyEnded) {
  const std::string go = dir_.path() / "go";
  ASSERT_TRUE(start({"sh", "-c",
                     "[ $LOCAL_RANK = 2 ] && exit 2\n"
                     "until [ -e $0$LOCAL_RANK ]; do sleep 0.01; done; exit $LOCAL_RANK",
                     go},
                    3)
                  .empty());
  for (const std::size_t left : {2u, 1u, 0u}) {
    ASSERT_TRUE(test::wait_until([&] { return living_children({}).size() == left; }));
    if (left > 0) dir_.write("go" + std::to_string(left - 1), "");
  }
  ASSERT_TRUE(wait_for_exits(3));
  EXPECT_THAT(order_, ElementsAre(2, 1, 0));
}

// A debugger that a user has attached gets the end of the process first.
TEST_F(RoundProcessesTest, TheEndOfATracedWorkerIsToldWhenTheTracerLetsGo) {
  ASSERT_TRUE(start_shell("echo ${$}; exec sleep 1000").empty());
  const pid_t worker = pid_in("rank_1.here.out");
  ASSERT_GT(worker, 0);
  int ready[2];
  int go[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(go, O_CLOEXEC), 0);
  const pid_t tracer = ::fork();
  if (tracer == 0) {
    char said = ::ptrace(PTRACE_SEIZE, worker, 0, 0) == 0 ? 'y' : 'n';
    (void)!::write(ready[1], &said, 1);
    (void)!::read(go[0], &said, 1);
    ::_exit(0);
  }
  char seized = 'n';
  ASSERT_EQ(::read(ready[0], &seized, 1), 1);
  ASSERT_EQ(seized, 'y');
  ::kill(worker, SIGKILL);
  EXPECT_FALSE(test::run_until(
      io_, [&] { return !exits_.empty(); }, std::chrono::milliseconds(300)));
  EXPECT_EQ(::write(go[1], "!", 1), 1);
  ASSERT_TRUE(wait_for_exits(1));
  EXPECT_EQ(exits_.at(0).signal, SIGKILL);
  EXPECT_EQ(::waitpid(tracer, nullptr, 0), tracer);
  for (const int fd : {ready[0], ready[1], go[0], go[1]}) ::close(fd);
}

// The loop does not run between the worker's end and reap(), so nothing of what it left has been
// read before.
TEST_F(RoundProcessesTest, ReapTellsTheExitWithAllThatTheWorkerLeft) {
  ASSERT_TRUE(
      start({"python3", "-c",
             "import os, struct\n"
             "text = b'{\"type\":\"error\",\"message\":\"why\"}'\n"
             "os.write(int(os.environ['DDP_CONTROL_FD']), struct.pack('<I', len(text)) + text)\n"
             "os.write(1, b'out')\n"
             "os.write(2, b'first\\nlast')\n"
             "os._exit(9)\n"})
          .empty());
  siginfo_t info{};
  ASSERT_TRUE(test::wait_until([&] {
    return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
  }));
  processes_->reap();
  ASSERT_EQ(exits_.size(), 1u);
  EXPECT_EQ(exits_.at(0).exit_code, 9);
  EXPECT_EQ(exits_.at(0).message, "why");
  EXPECT_THAT(exits_.at(0).stderr_tail, ElementsAre("first", "last"));
  EXPECT_EQ(log("rank_1.here.out"), "out");
}

TEST_F(RoundProcessesTest, ProgressAndErrorsComeOverTheControlSocket) {
  // Python can write to an inherited descriptor of any number.
  ASSERT_TRUE(
      start({"python3", "-c",
             "import os, struct\n"
             "def send(text): os.write(int(os.environ['DDP_CONTROL_FD']), struct.pack('<I', "
             "len(text)) + text)\n"
             "send(b'{\"type\":\"hello\",\"rank\":1}')\n"
             "send(b'{\"type\":\"progress\",\"step\":41}')\n"
             "send(b'{\"type\":\"of a later version\"}')\n"
             "send(b'{\"type\":\"progress\",\"step\":42}')\n"
             "send(b'{\"type\":\"error\",\"message\":\"rank 0 is gone\",\"secondary\":true}')\n"
             "os._exit(73)\n"})
          .empty());
  ASSERT_TRUE(wait_for_exits(1));
  EXPECT_EQ(steps_[0], 42);
  EXPECT_EQ(exits_.at(0).exit_code, 73);
  EXPECT_EQ(exits_.at(0).message, "rank 0 is gone");
  EXPECT_TRUE(exits_.at(0).secondary);
}

TEST_F(RoundProcessesTest, TheMessageOfAnErrorFileIsTold) {
  ASSERT_TRUE(
      start_shell("echo '{\"message\": {\"message\": \"ValueError: no\", \"extraInfo\": {}}}' "
                  "> $TORCHELASTIC_ERROR_FILE; exit 1")
          .empty());
  ASSERT_TRUE(wait_for_exits(1));
  EXPECT_EQ(exits_.at(0).message, "ValueError: no");
  EXPECT_TRUE(exits_.at(0).has_error_file);
  EXPECT_EQ(log("rank_1.here.error.json"),
            "{\"message\": {\"message\": \"ValueError: no\", \"extraInfo\": {}}}\n");
}

TEST_F(RoundProcessesTest, AWorkerFailedWhenItsErrorFileSays) {
  ASSERT_TRUE(start_shell("echo '{\"message\": \"no\", \"timestamp\": 1700000000}' "
                          "> $TORCHELASTIC_ERROR_FILE; kill -TERM ${$}")
                  .empty());
  ASSERT_TRUE(wait_for_exits(1));
  const WorkerExit exit = exits_.at(0);
  EXPECT_EQ(exit.time_ms / 1'000, 1'700'000'000);
  EXPECT_GT(exit.age, std::chrono::hours(24));
  EXPECT_EQ(exit.signal, SIGTERM);
}

// The script writes past Python's buffers: a signal may be handled within print(), where another
// print() is an error.
TEST_F(RoundProcessesTest, AnAbortReachesTheSharedMemoryTheSocketAndThenTheSignal) {
  ASSERT_TRUE(
      start({"python3", "-c",
             "import mmap, os, signal, struct\n"
             "memory = mmap.mmap(int(os.environ['DDP_SHM_FD']), 4096)\n"
             "def say(*values): os.write(1, (' '.join(map(str, values)) + '\\n').encode())\n"
             "def on_term(*_):\n"
             "    frame = os.read(int(os.environ['DDP_CONTROL_FD']), 4096)[4:].decode()\n"
             "    say('abort', memory[128], 'reason' in frame, 'rank 7 is gone' in frame,\n"
             "        b'rank 7 is gone\\0' in memory[:])\n"
             "    os._exit(0)\n"
             "signal.signal(signal.SIGTERM, on_term)\n"
             "say(memory[:4], os.fstat(int(os.environ['DDP_SHM_FD'])).st_size)\n"
             "while True: signal.sigtimedwait([], 0.01)\n"})
          .empty());
  ASSERT_TRUE(
      test::run_until(io_, [&] { return log("rank_1.here.out").find('\n') != std::string::npos; }));
  processes_->signal(SIGTERM, "rank 7 is gone");
  ASSERT_TRUE(wait_for_exits(1));
  EXPECT_EQ(log("rank_1.here.out"),
            "b'DDPS' " + std::to_string(wire::shm_bytes(1)) + "\nabort 1 True True True\n");
}

TEST_F(RoundProcessesTest, LogFilesOfARoundBeforeStayAsTheyAre) {
  ASSERT_TRUE(start({"echo", "hello"}, 1, 3).empty());
  ASSERT_TRUE(wait_for_exits(1));
  ASSERT_TRUE(processes_->clear({}, Duration(2'000)));
  exits_.clear();
  ASSERT_TRUE(start({"echo", "hello"}, 1, 4).empty());
  ASSERT_TRUE(wait_for_exits(1));
  EXPECT_EQ(log("rank_1.here.out"), "hello\n");
  EXPECT_EQ(dir_.read("logs/job/round_4/rank_1.here.out"), "hello\n");
}

TEST_F(RoundProcessesTest, ALogFolderThatCannotBeMadeIsToldAndTheWorkerRuns) {
  dir_.write("logs", "a file where the folder should be");
  ASSERT_TRUE(start_shell("exit 0").empty());
  ASSERT_TRUE(wait_for_exits(1));
  EXPECT_EQ(exits_.at(0).exit_code, 0);
  EXPECT_THAT(screen(), HasSubstr("--log-dir: the log file of [here:1] cannot be written: " +
                                  (dir_.path() / "logs/job/round_3/rank_1.here.out").string() +
                                  ": cannot make its folder: Not a directory\n"));
}

TEST_F(RoundProcessesTest, NothingStaysOpenAfterManyRounds) {
  const auto open_fds = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  std::ptrdiff_t before = 0;
  for (Round number = 0; number < 20; ++number) {
    exits_.clear();
    ASSERT_TRUE(start({"true"}, 2, number).empty());
    ASSERT_TRUE(wait_for_exits(2));
    ASSERT_TRUE(processes_->clear({}, Duration(2'000)));
    if (number == 0) before = open_fds();
  }
  // Files of rounds are closed a little later.
  EXPECT_TRUE(test::wait_until([&] { return open_fds() <= before; }));
}

TEST(RoundMemory, CannotBeResizedAndKeepsTheFirstAbort) {
  auto memory = RoundMemory::create(2, 5);
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  RoundMemory& m = **memory;
  EXPECT_EQ(m.header().round, 5);
  EXPECT_EQ(m.header().local_size, 2);
  EXPECT_EQ(m.header().size_bytes, wire::shm_bytes(2));
  EXPECT_EQ(::ftruncate(m.fd(), 4096), -1);
  EXPECT_EQ(::ftruncate(m.fd(), static_cast<off_t>(wire::shm_bytes(3))), -1);
  EXPECT_EQ(m.header().abort.load(), 0u);
  m.abort(std::string(1'000, 'x'));
  m.abort("second");
  EXPECT_EQ(m.header().abort.load(), 1u);
  EXPECT_EQ(std::string(m.header().abort_reason),
            std::string(sizeof(m.header().abort_reason) - 1, 'x'));
}

}  // namespace
}  // namespace ddp::agent
