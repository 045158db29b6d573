// Unmodified PyTorch clients against ddp-rendezvous. The distribution's PyTorch speaks the legacy
// dialect.
#include <filesystem>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace ddp::test {
namespace {

// The distribution's interpreter: another one that comes first in PATH has no torch.
constexpr const char* kPython = "/usr/bin/python3";

bool has_torch() {
  static const bool has = run({kPython, "-c", "import torch.distributed"}).status == 0;
  return has;
}

class StorePythonTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_torch()) GTEST_SKIP() << kPython << " cannot import torch.distributed";
    const char* const bin = ::getenv("DDP_BIN_DIR");
    ASSERT_NE(bin, nullptr) << "DDP_BIN_DIR is not set";
    daemon_ = std::make_unique<Process>(
        std::vector<std::string>{std::string(bin) + "/ddp-rendezvous", "--port", "0"});
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

TEST_F(StorePythonTest, EveryCallOfTCPStore) {
  const TempDir dir;
  const std::string script = dir.write("calls.py", R"(
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
    assert "Timeout" in str(error), error
assert s.add("n", 2) == 0
other.set("never", "1")
assert s.get("never") == b"1"
assert s.add("n", 2) == 2
prefixed = dist.PrefixStore("pre", s)
prefixed.set("k", "v"); assert other.get("pre/k") == b"v"
print("all calls done")
)");
  const Finished finished = run({kPython, script, port_});
  EXPECT_EQ(finished.status, 0) << finished.err;
  EXPECT_NE(finished.out.find("all calls done"), std::string::npos);
  EXPECT_EQ(daemon_->err(), "") << "the daemon has nothing to complain about";
}

TEST_F(StorePythonTest, GlooReducesOverTwoRanks) {
  const TempDir dir;
  const std::string script = dir.write("ranks.py", R"(
import datetime, os, sys
import torch, torch.distributed as dist

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1], WORLD_SIZE="2",
                  TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0",
                  GLOO_SOCKET_IFNAME="lo")
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=50))
t = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(t)
group = dist.new_group([0, 1])
dist.barrier(group)
print("sum", t.item())
)");
  ProcessOptions options;
  options.environment = {{"RANK", "0"}};
  Process first({kPython, script, port_}, options);
  options.environment = {{"RANK", "1"}};
  Process second({kPython, script, port_}, options);
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  EXPECT_NE(first.out().find("sum 3.0"), std::string::npos) << first.out();
  EXPECT_NE(second.out().find("sum 3.0"), std::string::npos) << second.out();
}

}  // namespace
}  // namespace ddp::test
