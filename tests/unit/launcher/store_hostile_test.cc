// ddp-rendezvous against hostile clients: whatever they send, the daemon survives, serves the other
// clients, and keeps neither connections nor memory for them.
#include <charconv>
#include <fstream>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "common/base/exit_codes.h"
#include "tests/support/full_matrix.h"
#include "tests/support/hostile_client.h"
#include "tests/support/process.h"
#include "tests/support/sanitizer.h"
#include "tests/support/store_request.h"

namespace ddp::test {
namespace {

using wire::c10d::Dialect;
using wire::c10d::Op;

constexpr std::uint64_t kSeed = 20'261'122;
// What a process that forgets nothing may still differ by: lines of its log, tables that grew.
constexpr std::size_t kSlackBytes = 3u << 20;

class StoreHostileTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* const bin = ::getenv("DDP_BIN_DIR");
    ASSERT_NE(bin, nullptr) << "DDP_BIN_DIR is not set";
    daemon_ = std::make_unique<Process>(std::vector<std::string>{
        // Or else those who close at once would be dropped before a byte of theirs is read.
        std::string(bin) + "/ddp-rendezvous", "--any-user", "--port", "0", "--bind", "127.0.0.1"});
    ASSERT_TRUE(daemon_->prints("\n")) << daemon_->err();
    const std::string out = daemon_->out();
    port_ = std::stoi(out.substr(out.rfind(':') + 1));
    good_ = std::make_unique<RawClient>(port_);
    good_->send(request_bytes(Op::kSet, "good", std::string(1'000, 'g')));
    // So that what is done for the first time counts as there from the beginning.
    HostileClient first(port_, kSeed - 1);
    for (int i = 0; i < 300; ++i) first.step();
    first.stop_dawdling();
    serves_the_good();
    is_alone_again();
    before_ = memory();
    keys_before_ = metric("ddp_store_keys");
  }

  void TearDown() override {
    if (!daemon_ || before_ == 0) return;
    serves_the_good();
    is_alone_again();
    EXPECT_TRUE(kSanitized || wait_until([&] { return memory() < before_ + kSlackBytes; }, 10s))
        << "from " << before_ << " to " << memory() << " bytes";
    daemon_->kill(SIGTERM);
    EXPECT_EQ(daemon_->wait(), kExitSuccess) << daemon_->err();
    EXPECT_LT(daemon_->err().size(), 100'000u) << "the log grows with the flood";
  }

  void serves_the_good() {
    good_->send(request_bytes(Op::kGet, "good"));
    ASSERT_EQ(good_->receive(1'008).size(), 1'008u) << daemon_->err();
  }
  // Bytes of the daemon's own, as the kernel counts them.
  std::size_t memory() const {
    std::ifstream status("/proc/" + std::to_string(daemon_->pid()) + "/status");
    std::string word;
    while (status >> word) {
      if (word != "RssAnon:") continue;
      std::size_t kilobytes = 0;
      status >> kilobytes;
      return kilobytes << 10;
    }
    return 0;
  }
  std::size_t metric(const std::string& name) const {
    const std::string page = http_get(port_, "/metrics");
    const std::size_t at = page.find("\n" + name + " ");
    std::size_t value = 0;
    if (at == std::string::npos) return ~value;
    const char* const digits = page.data() + at + name.size() + 2;
    std::from_chars(digits, page.data() + page.size(), value);
    return value;
  }
  // No connection but the good one and the one that asks, and no wait.
  void is_alone_again() {
    EXPECT_TRUE(wait_until([&] { return metric("ddp_connections") == 2; }));
    EXPECT_EQ(metric("ddp_store_waits"), 0u);
  }

  std::unique_ptr<Process> daemon_;
  int port_ = 0;
  std::unique_ptr<RawClient> good_;
  std::size_t before_ = 0;
  std::size_t keys_before_ = 0;
};

TEST_F(StoreHostileTest, EveryTruncationOfEveryVector) {
  EXPECT_GT(HostileClient(port_, kSeed).truncate_all(), 3'000u);
}

TEST_F(StoreHostileTest, FlippedBytes) {
  HostileClient hostile(port_, kSeed);
  for (int i = 0, count = full_matrix() ? 100'000 : 5'000; i < count; ++i) hostile.flip();
}

TEST_F(StoreHostileTest, LengthsUpToTheLargest) {
  HostileClient hostile(port_, kSeed);
  for (int i = 0, count = full_matrix() ? 100'000 : 5'000; i < count; ++i) hostile.announce_much();
}

TEST_F(StoreHostileTest, TenMillionRandomBytes) {
  HostileClient hostile(port_, kSeed);
  for (int i = 0; i < 5'000; ++i) hostile.babble(2'000);
}

TEST_F(StoreHostileTest, TwentyThousandConnectsAndResets) {
  HostileClient hostile(port_, kSeed);
  for (int i = 0; i < 20'000; ++i) {
    hostile.knock();
    if (i % 1'000 == 0) serves_the_good();
  }
}

TEST_F(StoreHostileTest, ConnectionsThatTakeForEver) {
  HostileClient hostile(port_, kSeed);
  for (int i = 0; i < 20'000; ++i) {
    hostile.dawdle(500);
    if (i % 1'000 == 0) serves_the_good();
  }
}

TEST_F(StoreHostileTest, LargeRequestsThatAreNotFinished) {
  std::vector<std::unique_ptr<RawClient>> clients;
  const std::string half = request_bytes(Op::kSet, "large", std::string(8u << 20, 'v'));
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<RawClient>(port_));
    clients.back()->send(std::string_view(half).substr(0, half.size() - 1));
  }
  ASSERT_TRUE(wait_until([&] { return memory() > before_ + (100u << 20); }));
  serves_the_good();
}

TEST_F(StoreHostileTest, LargeValuesThatAreDeletedAndAnswersThatAreNotRead) {
  const std::string value(20u << 20, 'v');
  std::vector<std::unique_ptr<RawClient>> lazy;
  for (int i = 0; i < 5; ++i) {
    const std::string key = "large " + std::to_string(i);
    lazy.push_back(std::make_unique<RawClient>(port_));
    lazy.back()->send(request_bytes(Op::kSet, key, value) + request_bytes(Op::kGet, key));
  }
  ASSERT_TRUE(wait_until([&] { return metric("ddp_store_keys") == keys_before_ + 5; }));
  EXPECT_GT(memory(), before_ + (100u << 20));
  for (int i = 0; i < 5; ++i) {
    good_->send(request_bytes(Op::kDeleteKey, "large " + std::to_string(i)));
    EXPECT_EQ(good_->receive(8)[0], '\1');
  }
}

TEST_F(StoreHostileTest, ManySmallKeysThatAreDeleted) {
  std::string set, erase;
  for (int i = 0; i < 100'000; ++i) {
    set += request_bytes(Op::kSet, "key " + std::to_string(i), "value");
    erase += request_bytes(Op::kDeleteKey, "key " + std::to_string(i));
  }
  ASSERT_TRUE(good_->send(set));
  ASSERT_TRUE(wait_until([&] { return metric("ddp_store_keys") == keys_before_ + 100'000; }));
  std::thread sender([&] { good_->send(erase); });
  EXPECT_EQ(good_->receive(800'000).size(), 800'000u);
  sender.join();
}

// How much it is, is printed: DDP_TEST_FULL=1 has as many as a test can.
TEST_F(StoreHostileTest, AnIdleConnectionIsSmall) {
  const int count = full_matrix() ? 9'000 : 2'000;
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < count; ++i) {
    clients.push_back(std::make_unique<RawClient>(port_));
    // A request of some kilobytes, then a small one.
    clients.back()->send(request_bytes(Op::kSet, "k", std::string(4'000, 'v')) + "\x06");
    ASSERT_EQ(clients.back()->receive(8).size(), 8u) << i;
  }
  const std::size_t each = (memory() - before_) / static_cast<std::size_t>(count);
  std::printf("%zu bytes of memory for each of %d idle connections\n", each, count);
  if (kSanitized) return;
  EXPECT_LT(each, 4'096u);
  EXPECT_GT(each, 0u);
}

TEST_F(StoreHostileTest, ACrowdThatIsGoneHoldsNoMemory) {
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 4'000; ++i) {
    clients.push_back(std::make_unique<RawClient>(port_));
    clients.back()->send(request_bytes(Op::kWait, "never " + std::to_string(i)));
  }
  ASSERT_TRUE(wait_until([&] { return metric("ddp_store_waits") == 4'000; }));
  EXPECT_GT(memory(), before_ + kSlackBytes);
}

}  // namespace
}  // namespace ddp::test
