// Workers that the kernel holds in state D, which is uninterruptible sleep.
#include "common/base/exit_codes.h"
#include "tests/process/ddp_run_fixture.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// A control group of version 1's freezer: processes in it are in state D while it is frozen, and
// SIGKILL ends them only afterwards. A shell thaws and removes it when this object goes, however
// that happens.
class Freezer {
 public:
  Freezer() {
    // Tests in other process namespaces have the same numbers and the same groups.
    if (::mkdtemp(folder_.data()) == nullptr) return;
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    until_ = ends[1];
    cleaner_ = std::make_unique<Process>(
        std::vector<std::string>{"sh", "-c",
                                 "read nothing; echo THAWED > $0/freezer.state; "
                                 "until rmdir $0; do sleep 0.05; done",
                                 folder_},
        ProcessOptions{.environment = {}, .folder = "", .inherited = {}, .input = ends[0]});
    ::close(ends[0]);
  }
  ~Freezer() {
    if (!cleaner_) return;
    ::close(until_);
    EXPECT_TRUE(cleaner_->wait()) << folder_;
  }
  Freezer(const Freezer&) = delete;
  Freezer& operator=(const Freezer&) = delete;

  bool is_there() const { return cleaner_ != nullptr; }
  // For a shell.
  std::string freeze_me() const {
    return "echo ${$} > " + folder_ + "/cgroup.procs; echo > \"$OUT/in\"; echo FROZEN > " +
           folder_ + "/freezer.state; sleep 1000";
  }

 private:
  std::string folder_ = "/sys/fs/cgroup/freezer/ddp-test-XXXXXX";
  int until_ = -1;
  std::unique_ptr<Process> cleaner_;
};

class DdpRunStuck : public DdpRunTest {};

// torchrun 2.14.1 waits for --shutdown-timeout once more after SIGKILL, and leaves the process
// behind.
TEST_F(DdpRunStuck, AWorkerThatSigkillDoesNotEndIsGivenUp) {
  const Freezer freezer;
  if (!freezer.is_there()) GTEST_SKIP() << "no freezer cgroup of version 1 that may be written";
  const Finished job =
      run_job({"--shutdown-timeout", "0.2", "--nproc-per-node", "2", "sh", "-c",
               "if [ $RANK = 0 ]; then echo ${$} > \"$OUT/pid\"; " + freezer.freeze_me() +
                   "; fi; until [ -e \"$OUT/in\" ]; do sleep 0.05; done; exit 3"});
  EXPECT_EQ(job.status, 3) << job.err;
  EXPECT_THAT(job.err, HasSubstr("worker local rank 0 (pid " + std::to_string(pid_in("pid")) +
                                 ") did not end 5 s after SIGKILL; it is in state D in "));
  EXPECT_THAT(job.err, HasSubstr("rank      : 1 (local_rank: 1)"));
  EXPECT_EQ(alive().size(), 1U) << "the worker lives on";
}

// A new worker would need the device that the one in state D holds.
TEST_F(DdpRunStuck, ANodeThatHasGivenAWorkerUpStartsNoOther) {
  const Freezer freezer;
  if (!freezer.is_there()) GTEST_SKIP() << "no freezer cgroup of version 1 that may be written";
  const Finished job = run_job(
      {"--shutdown-timeout", "0.2", "--max-restarts", "1", "--nproc-per-node", "2", "sh", "-c",
       "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || { echo second round; exit 0; }; "
       "if [ $RANK = 0 ]; then echo ${$} > \"$OUT/pid\"; " +
           freezer.freeze_me() + "; fi; until [ -e \"$OUT/in\" ]; do sleep 0.05; done; exit 3"});
  EXPECT_EQ(job.status, kExitWorkerUnkillable) << job.err;
  EXPECT_THAT(job.err, HasSubstr("takes no further part: worker local rank 0 (pid " +
                                 std::to_string(pid_in("pid")) +
                                 ") did not end 5 s after SIGKILL; it is in state D in "));
  EXPECT_THAT(job.out, Not(HasSubstr("second round")));
}

TEST_F(DdpRunStuck, TheOtherNodesGoOnWithoutANodeThatHoldsAWorker) {
  const Freezer freezer;
  if (!freezer.is_there()) GTEST_SKIP() << "no freezer cgroup of version 1 that may be written";
  const int port = free_port();
  const auto start_node = [&](const std::string& is_host, const std::string& script) -> Process& {
    return start({"--nnodes", "1:2", "--rdzv-endpoint", "127.0.0.1:" + std::to_string(port),
                  "--rdzv-id", "job", "--rdzv-conf", "is_host=" + is_host, "--last-call", "60",
                  "--shutdown-timeout", "0.2", "--max-restarts", "1", "sh", "-c", script});
  };
  const std::string waits = "until [ -e \"$OUT/in\" ]; do sleep 0.05; done; ";
  Process& first = start_node(
      "true",
      "[ $WORLD_SIZE = 2 ] || { echo alone after $TORCHELASTIC_RESTART_COUNT; exit 0; }; "
      "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || exec sleep 1000; " +
          waits + "exit 3");
  Process& second = start_node("false", freezer.freeze_me());
  EXPECT_EQ(second.wait(), kExitWorkerUnkillable) << second.err();
  EXPECT_THAT(second.err(), HasSubstr("did not end 5 s after SIGKILL; it is in state D in "));
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_THAT(first.out(), HasSubstr("alone after 1")) << first.err();
  EXPECT_THAT(first.err(), HasSubstr("takes no further part: worker local rank 0"));
}

// As seen with torchrun 2.14.1, whose status is 0 then: the workers are stopped, and whatever
// --max-restarts says, none is started again.
TEST_F(DdpRunStuck, AWorkerInStateDForTooLongEndsTheJob) {
  // posix_spawn() returns when its child has opened the pipe, which nobody does from the other end.
  folder_.write("stuck.py",
                "import os, time\n"
                "if os.environ['RANK'] == '1': time.sleep(1000)\n"
                "print(os.environ['TORCHELASTIC_RESTART_COUNT'], os.getpid(), flush=True)\n"
                "os.mkfifo('pipe')\n"
                "opened = [(os.POSIX_SPAWN_OPEN, 0, 'pipe', os.O_RDONLY, 0)]\n"
                "os.posix_spawn('/bin/true', ['true'], os.environ, file_actions=opened)\n");
  const Finished job = run_job(
      {"--nproc-per-node", "2", "--max-restarts", "2", "stuck.py"},
      {{"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "0.5"}, {"PYTHON_EXEC", "/usr/bin/python3"}});
  EXPECT_EQ(job.status, 128 + SIGKILL) << job.err;
  EXPECT_THAT(job.err, HasSubstr("in uninterruptible sleep, state D, for 0.5 s"));
  EXPECT_THAT(job.err, HasSubstr("rank      : 0 (local_rank: 0)"));
  EXPECT_THAT(job.err, HasSubstr("0 of 2 restarts used"));
  EXPECT_THAT(job.out, Not(HasSubstr("] 1 "))) << "restarted";
}

}  // namespace
}  // namespace ddp::test
