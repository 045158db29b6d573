// The distribution's PyTorch clients against ddp-rendezvous. They speak the legacy dialect (1.13)
// or the newest one.
#include <filesystem>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "tests/support/python_torch.h"
#include "tests/support/temp_dir.h"

namespace ddp::test {
namespace {

class StorePythonTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_torch()) GTEST_SKIP() << kPython << " cannot import torch.distributed";
    const char* const bin = ::getenv("DDP_BIN_DIR");
    ASSERT_NE(bin, nullptr) << "DDP_BIN_DIR is not set";
    daemon_ = std::make_unique<Process>(std::vector<std::string>{
        std::string(bin) + "/ddp-rendezvous", "--bind", "127.0.0.1", "--port", "0"});
    ASSERT_TRUE(daemon_->prints("\n")) << daemon_->err();
    const std::string out = daemon_->out();
    port_ = out.substr(out.rfind(':') + 1);
    port_.pop_back();
  }
  void TearDown() override {
    if (!daemon_) return;
    daemon_->kill(SIGTERM);
    EXPECT_EQ(daemon_->wait(), 0);
  }

  std::unique_ptr<Process> daemon_;
  std::string port_;
};

constexpr const char* kEveryCall = R"(
import datetime, sys, threading
import torch.distributed as dist

def connect(seconds=20):
    return dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False,
                         timeout=datetime.timedelta(seconds=seconds))

s = connect()
s.set("k", "v"); assert s.get("k") == b"v"
s.set("empty", ""); assert s.get("empty") == b""
s.set("bytes", b"\x00\xff\n"); assert s.get("bytes") == b"\x00\xff\n"
assert s.add("n", 5) == 5 and s.add("n", -7) == -2 and s.get("n") == b"-2"
assert s.compare_set("cs", "", "first") == b"first"
assert s.compare_set("cs", "nope", "third") == b"first"
assert s.compare_set("cs", "first", "second") == b"second"
assert s.compare_set("absent", "x", "y") == b"x"
assert s.num_keys() == 5, s.num_keys()
assert s.delete_key("k") and not s.delete_key("k")
big = "b" * 20_000_000
s.set("big", big); assert s.get("big") == big.encode()

# A get that blocks until another client sets the key.
other = connect()
timer = threading.Timer(0.05, lambda: other.set("late", "1")); timer.start()
assert s.get("late") == b"1"
# A wait that times out says so, and the connection goes on, whatever comes for that key later.
s.set_timeout(datetime.timedelta(milliseconds=50))
try:
    s.wait(["never", "n"]); raise SystemExit("no timeout")
except RuntimeError as error:
    assert "timeout" in str(error).lower(), error
assert s.add("n", 2) == 0
other.set("never", "1")
assert s.get("never") == b"1"
assert s.add("n", 2) == 2
prefixed = dist.PrefixStore("pre", s)
prefixed.set("k", "v"); assert other.get("pre/k") == b"v"
assert prefixed.num_keys() == s.num_keys()
assert dist.PrefixStore("inner", prefixed).add("n", 1) == 1 and other.get("pre/inner/n") == b"1"
assert s.host == "127.0.0.1" and s.port == int(sys.argv[1])
assert s.timeout == datetime.timedelta(milliseconds=50)

# A client that says how many there are counts itself in.
for joined in (1, 2):
    counting = dist.TCPStore("127.0.0.1", int(sys.argv[1]), 2, False)
    assert counting.num_keys() == 10, counting.num_keys()
# What newer releases have: tried where the class has it, so that nothing of it is left out.
calls = {name for name in dir(dist.TCPStore) if not name.startswith("_")}
tried = {"set", "get", "add", "compare_set", "num_keys", "delete_key", "wait", "set_timeout",
         "host", "port", "timeout"}
if "multi_get" in calls:
    s.set_timeout(datetime.timedelta(seconds=20))
    s.append("text", "a"); s.append("text", "b"); assert s.get("text") == b"ab"
    s.multi_set(["m1", "m2"], ["1", "2"]); assert s.multi_get(["m1", "m2"]) == [b"1", b"2"]
    assert s.check(["m1", "m2"]) and not s.check(["m1", "m3"])
    assert s.has_extended_api() and not s.libuvBackend
    tried |= {"append", "multi_set", "multi_get", "check", "has_extended_api", "libuvBackend"}
if "list_keys" in calls:
    assert {"m1", "m2", "pre/k"} <= set(s.list_keys()), s.list_keys()
    assert s.clone().get("m1") == b"1"
    s.barrier("all", 1, datetime.timedelta(seconds=20))
    # Queues are refused by the client where it has no libuv.
    tried |= {"list_keys", "clone", "barrier", "queue_push", "queue_pop", "queue_len"}
assert calls == tried, calls ^ tried
print("all calls done")
)";

TEST_F(StorePythonTest, EveryCallOfTCPStore) {
  const TempDir dir;
  const std::string script = dir.write("calls.py", std::string(kWithoutLibuv) + kEveryCall);
  const Finished finished = run({kPython, script, port_});
  EXPECT_EQ(finished.status, 0) << finished.err;
  EXPECT_NE(finished.out.find("all calls done"), std::string::npos);
  EXPECT_EQ(daemon_->err(), "") << "the daemon has nothing to complain about";
}

TEST_F(StorePythonTest, GlooReducesOverTwoAndFourRanks) {
  const TempDir dir;
  const std::string script = dir.write("ranks.py", std::string(kWithoutLibuv) + R"(
import datetime, os, sys
import torch, torch.distributed as dist

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1],
                  TORCHELASTIC_USE_AGENT_STORE="True", GLOO_SOCKET_IFNAME="lo")
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=50))
t = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(t)
group = dist.new_group(list(range(dist.get_world_size())))
dist.barrier(group)
print("sum", t.item())
)");
  for (const int size : {2, 4}) {
    std::vector<std::unique_ptr<Process>> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ProcessOptions options;
      options.environment = {{"RANK", std::to_string(rank)},
                             {"WORLD_SIZE", std::to_string(size)},
                             {"TORCHELASTIC_RESTART_COUNT", "0"}};
      ranks.push_back(
          std::make_unique<Process>(std::vector<std::string>{kPython, script, port_}, options));
    }
    const std::string sum = "sum " + std::to_string(size * (size + 1) / 2) + ".0";
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->wait(), 0) << rank->err();
      EXPECT_NE(rank->out().find(sum), std::string::npos) << rank->out();
    }
    // Each start expects a store without keys of another.
    TearDown();
    SetUp();
  }
}

// Python 3.11 does not give the flags 0 and 3 by their values, on which 1.13's torchrun relies.
constexpr const char* kTorchrun = R"(
import torch
from torch.distributed.elastic.multiprocessing import api
if torch.__version__.startswith("1."):
    api.Std.from_str = classmethod(lambda cls, text: api.Std.NONE)
from torch.distributed.run import main
main()
)";

// Whether it is the first time is told by a file: an agent that restarts its worker because the
// other one waits does not count that, so TORCHELASTIC_RESTART_COUNT may be 0 again on one of them.
constexpr const char* kTrainer = R"(
import os, signal, sys
import torch, torch.distributed as dist

died = sys.argv[1]
again = os.path.exists(died)
dist.init_process_group("gloo")
torch.manual_seed(7)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.full((3, 4), float(dist.get_rank()))).sum().backward()
optimizer.step()
dist.barrier()
print("rank", dist.get_rank(), "step done", "again" if again else "first", flush=True)
if not again:
    if dist.get_rank() == 1:
        open(died, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()  # Fails. A worker that had succeeded would not be started again.
)";

TEST_F(StorePythonTest, TwoAgentsOfTorchrunFormAGroupAndSurviveTheDeathOfAWorker) {
  const TempDir dir;
  const std::string torchrun = dir.write("torchrun.py", std::string(kWithoutLibuv) + kTorchrun);
  const std::string trainer = dir.write("trainer.py", kTrainer);
  ProcessOptions options;
  // The last two: its workers are not mended as torchrun is here.
  options.environment = {{"GLOO_SOCKET_IFNAME", "lo"},
                         {"OMP_NUM_THREADS", "1"},
                         {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"},
                         {"USE_LIBUV", "0"}};
  const std::vector<std::string> command = {kPython,
                                            torchrun,
                                            "--nnodes",
                                            "2",
                                            "--nproc_per_node",
                                            "1",
                                            "--rdzv_backend",
                                            "c10d",
                                            "--rdzv_endpoint",
                                            "127.0.0.1:" + port_,
                                            "--rdzv_conf",
                                            "is_host=0",
                                            "--rdzv_id",
                                            "job7",
                                            "--max_restarts",
                                            "2",
                                            "--monitor_interval",
                                            "0.1",
                                            trainer,
                                            (dir.path() / "died").string()};
  Process first(command, options), second(command, options);
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  const std::string out = first.out() + second.out();
  for (const char* const line : {"rank 0 step done first", "rank 1 step done first",
                                 "rank 0 step done again", "rank 1 step done again"}) {
    EXPECT_NE(out.find(line), std::string::npos) << line << "\n" << out << first.err();
  }
}

}  // namespace
}  // namespace ddp::test
