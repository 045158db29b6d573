// TcpStore against the distribution's PyTorch server: 1.13.1 or newer, without libuv.
#include <gtest/gtest.h>

#include "common/base/clock.h"
#include "common/store/tcp_store.h"
#include "common/wire/c10d.h"
#include "tests/support/python_torch.h"
#include "tests/support/store_contract.h"

namespace ddp::test {
namespace {

// One process with a server for each test, since PyTorch takes longer to import than all tests run.
class PyTorchServers {
 public:
  static int next_port() {
    static PyTorchServers servers;
    static std::size_t used = 0;
    return servers.ports_.at(used++);
  }

 private:
  PyTorchServers()
      : process_({kPython, "-c", std::string(kWithoutLibuv) + R"(
import signal
from torch.distributed import TCPStore
stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(40)]
print(*[s.port for s in stores], "all", flush=True)
signal.pause()
)"}) {
    if (!process_.prints("all\n")) throw std::runtime_error(process_.err());
    std::istringstream out(process_.out());
    for (int port = 0; out >> port;) ports_.push_back(port);
  }

  Process process_;
  std::vector<int> ports_;
};

std::unique_ptr<Store> connect_to_pytorch(int port,
                                          std::optional<wire::c10d::Dialect> dialect = {}) {
  TcpStoreOptions options;
  options.timeout = 20s;
  options.dialect = dialect;
  return connect_tcp_store("127.0.0.1", port, options).value();
}

StoreMaker pytorch_stores() {
  return [port = PyTorchServers::next_port()] { return connect_to_pytorch(port); };
}

// Those that compare_set() waits for do not end with it, and a server without libuv has no lists.
StoreCase server_case() {
  const bool legacy = torch_is_legacy();
  return {legacy ? "Server1_13" : "ServerWithoutLibuv", pytorch_stores, false, false, legacy};
}

INSTANTIATE_TEST_SUITE_P(PyTorch, StoreContract, testing::Values(server_case()),
                         [](const auto& given) { return given.param.name; });

TEST(PyTorchServerTest, ServesOtherClientsWhileOursFindsOutItsDialect) {
  const int port = PyTorchServers::next_port();
  auto first = connect_to_pytorch(
      port, torch_is_legacy() ? wire::c10d::Dialect::kLegacy : wire::c10d::Dialect::kNewest);
  std::thread newcomers([&] {
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(connect_to_pytorch(port)->add("newcomers", 1));
  });
  // A greeting that is half a request to this server would stop it until the greeter gives up.
  const auto begin = Clock::now();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(first->add("n", 1));
  newcomers.join();
  EXPECT_LT(Clock::now() - begin, 10s);
  EXPECT_EQ(first->get("newcomers", 20s).value(), "20");
}

// The answer to a wait that timed out comes when nobody expects it any more.
TEST(PyTorchServerTest, AWaitThatTimedOutDoesNotSpoilLaterAnswers) {
  const int port = PyTorchServers::next_port();
  auto store = connect_to_pytorch(port);
  auto other = connect_to_pytorch(port);
  for (int i = 0; i < 10; ++i) {
    const std::string key = "late " + std::to_string(i);
    EXPECT_EQ(store->wait({key}, 5ms).error().code, Errc::kTimeout);
    ASSERT_TRUE(other->set(key, "v"));
    EXPECT_FALSE(store->check({"absent"}).value()) << "the wait's answer, taken for this one's";
    EXPECT_EQ(store->add("n", 1).value(), i + 1);
    EXPECT_EQ(store->get(key, 20s).value(), "v");
  }
}

class SkipWithoutTorch : public testing::Environment {
 public:
  void SetUp() override {
    if (!has_torch()) GTEST_SKIP() << kPython << " cannot import torch.distributed";
  }
};
const auto* const kSkipWithoutTorch = testing::AddGlobalTestEnvironment(new SkipWithoutTorch);

}  // namespace
}  // namespace ddp::test
