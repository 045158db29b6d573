#include "tests/process/ddp_run_fixture.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;

// Real PyTorch under ddp-run: its store client, its gloo, its way to restart.
class DdpRunPython : public DdpRunTest {
 protected:
  // Debian's interpreter, the one that has python3-torch.
  const std::map<std::string, std::string> python_{{"PYTHON_EXEC", "/usr/bin/python3"},
                                                   {"GLOO_SOCKET_IFNAME", "lo"}};

  std::string all_reduce() {
    return folder_.write("all_reduce.py", R"(
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(value)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "sum", value.item(), sys.argv[1:])
dist.barrier()
dist.destroy_process_group()
)");
  }
};

TEST_F(DdpRunPython, AllReduceOnOneNode) {
  const Finished job =
      run_job({"--standalone", "--nproc_per_node=2", all_reduce(), "--lr", "1"}, python_);
  EXPECT_EQ(job.status, 0) << job.err;
  EXPECT_THAT(job.out, HasSubstr("rank 0 of 2 sum 3.0 ['--lr', '1']\n"));
  EXPECT_THAT(job.out, HasSubstr("rank 1 of 2 sum 3.0 ['--lr', '1']\n"));
}

TEST_F(DdpRunPython, AllReduceOverTwoNodes) {
  const int port = free_port();
  const std::string script = all_reduce();
  Process& first = start(node(2, port, {script}), python_);
  Process& second = start(node(2, port, {script}), python_);
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  const std::string out = first.out() + second.out();
  EXPECT_THAT(out, HasSubstr("rank 0 of 2 sum 3.0"));
  EXPECT_THAT(out, HasSubstr("rank 1 of 2 sum 3.0"));
}

TEST_F(DdpRunPython, ModuleRuns) {
  folder_.write("module.py", "import os, sys\nprint('module', os.environ['RANK'], sys.argv[1:])\n");
  const Finished job = run_job({"-m", "module", "x"}, python_);
  EXPECT_EQ(job.status, 0) << job.err;
  EXPECT_EQ(job.out, "module 0 ['x']\n");
}

// Fails once in the middle, goes on from what it saved, and ends as a script under torchrun would.
TEST_F(DdpRunPython, ElasticScriptGoesOnAfterARestart) {
  const std::string script = folder_.write("elastic.py", R"(
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
path = os.path.join(os.environ["OUT"], "state.pt")
state = torch.load(path) if os.path.exists(path) else {"step": 0, "weight": torch.zeros(2)}
print("rank", rank, "begins at step", state["step"], "attempt", os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in range(state["step"], 6):
    gradient = torch.full((2,), float(step + rank))
    dist.all_reduce(gradient)
    state = {"step": step + 1, "weight": state["weight"] + gradient}
    if rank == 0:
        torch.save(state, path + ".new")
        os.rename(path + ".new", path)
    dist.barrier()
    if step == 2 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise RuntimeError("fails once")
print("rank", rank, "weight", state["weight"].tolist())
)");
  const Finished job =
      run_job({"--standalone", "--nproc-per-node", "2", "--max-restarts", "1", script}, python_);
  EXPECT_EQ(job.status, 0) << job.err;
  EXPECT_THAT(job.err, HasSubstr("RuntimeError: fails once"));
  for (const char* rank : {"rank 0", "rank 1"}) {
    EXPECT_THAT(job.out, HasSubstr(std::string(rank) + " begins at step 0 attempt 0\n"));
    EXPECT_THAT(job.out, HasSubstr(std::string(rank) + " weight [36.0, 36.0]\n"));
  }
  EXPECT_THAT(job.out, testing::Not(HasSubstr("begins at step 0 attempt 1")));
}

// torch's own client of the watchdog's file.
TEST_F(DdpRunPython, AFileTimerThatExpiresEndsItsWorker) {
  auto environment = python_;
  environment["TORCHELASTIC_ENABLE_FILE_TIMER"] = "1";
  const Finished job = run_job({folder_.write("timer.py",
                                              "import os, time\n"
                                              "import torch.distributed.elastic.timer as timer\n"
                                              "path = os.environ['TORCHELASTIC_TIMER_FILE']\n"
                                              "timer.configure(timer.FileTimerClient(path))\n"
                                              "with timer.expires(after=60, scope='quick'):\n"
                                              "    pass\n"
                                              "print('released', flush=True)\n"
                                              "with timer.expires(after=0.1, scope='step 3'):\n"
                                              "    time.sleep(1000)\n")},
                               environment);
  EXPECT_EQ(job.status, 128 + SIGKILL) << job.err;
  EXPECT_EQ(job.out, "released\n");
  EXPECT_THAT(job.err, HasSubstr("its timer 'step 3' has expired"));
}

TEST_F(DdpRunPython, AnExceptionIsInTheReport) {
  const Finished job = run_job({"--nproc-per-node", "2",
                                folder_.write("fails.py",
                                              "import os, time\n"
                                              "if os.environ['RANK'] == '1':\n"
                                              "    raise ValueError('of all things')\n"
                                              "time.sleep(1000)\n")},
                               python_);
  EXPECT_EQ(job.status, 1);
  const auto report = job.err.find("Root Cause (first observed failure):");
  ASSERT_NE(report, std::string::npos) << job.err;
  EXPECT_THAT(job.err.substr(report), HasSubstr("ValueError: of all things"));
}

}  // namespace
}  // namespace ddp::test
