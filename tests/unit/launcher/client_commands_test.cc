// ddp-rendezvous get and keys: what they print, say and exit with.
#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "common/base/exit_codes.h"
#include "common/store/tcp_store.h"
#include "tests/support/listener.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace ddp::test {
namespace {

class ClientCommandsTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(daemon_.prints("\n")) << daemon_.err();
    const std::string out = daemon_.out();
    where_ = "127.0.0.1:" + out.substr(out.rfind(':') + 1);
    where_.pop_back();
    const int port = std::stoi(where_.substr(where_.rfind(':') + 1));
    store_ = connect_tcp_store("127.0.0.1", port, std::chrono::seconds(20)).value();
  }
  Finished call(std::vector<std::string> words) {
    words.insert(words.begin(), bin("ddp-rendezvous"));
    return run(words);
  }
  void expect(const std::vector<std::string>& words, const std::string& out) {
    const Finished finished = call(words);
    EXPECT_EQ(finished.status, kExitSuccess) << finished.err;
    EXPECT_EQ(finished.out, out);
    EXPECT_EQ(finished.err, "");
  }
  // One line that names what is wrong and what to do.
  void expect_refused(const std::vector<std::string>& words, int status,
                      const std::vector<std::string>& parts) {
    const Finished finished = call(words);
    EXPECT_EQ(finished.status, status) << finished.err;
    EXPECT_EQ(finished.out, "");
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
    for (const std::string& part : parts) {
      EXPECT_NE(finished.err.find(part), std::string::npos)
          << part << " is not in " << finished.err;
    }
  }

  Process daemon_{{bin("ddp-rendezvous"), "--port", "0"}};
  std::string where_;
  std::unique_ptr<Store> store_;
};

TEST_F(ClientCommandsTest, DoWhatTheySay) {
  for (const auto& [key, value] : std::map<std::string, std::string>{
           {"k", "two words\n"}, {"n", std::string("a\0b", 3)}, {"--flag", "-1"}, {"empty", ""}}) {
    ASSERT_TRUE(store_->set(key, value));
    expect({"get", where_, "--", key}, value);
  }
  expect({"keys", where_}, "--flag\nempty\nk\nn\n");
  expect({"keys", where_, "n"}, "n\n");
  expect({"get", "--timeout=5", where_, "empty"}, "");
}

TEST_F(ClientCommandsTest, AValueThatCannotBeWrittenIsAFailure) {
  for (const std::size_t size : {10, 1'000'000}) {
    ASSERT_TRUE(store_->set("k", std::string(size, 'v')));
    Process get(
        {"sh", "-c", "exec \"$0\" get \"$1\" k > /dev/full", bin("ddp-rendezvous"), where_});
    EXPECT_EQ(get.wait(), kExitInternal) << size << " bytes: " << get.err();
  }
}

TEST_F(ClientCommandsTest, AMissingKeyIsSaidAtOnceUnlessToldToWait) {
  expect_refused({"get", where_, "absent"}, kExitKeyMissing,
                 {"ddp-rendezvous get:", "'absent'", "keys " + where_, "--timeout"});
  expect_refused({"get", "--timeout", "0.02", where_, "absent"}, kExitKeyMissing,
                 {"'absent'", "20 ms"});
  Process waiter({bin("ddp-rendezvous"), "get", "--timeout", "20", where_, "late"});
  ASSERT_TRUE(store_->set("late", "v"));
  EXPECT_EQ(waiter.wait(), kExitSuccess) << waiter.err();
  EXPECT_EQ(waiter.out(), "v");
}

TEST_F(ClientCommandsTest, WrongLinesAreRefusedInOneLine) {
  expect_refused({"get", where_}, kExitUsage, {"HOST[:PORT] and a key"});
  expect_refused({"get", where_, "--tiemout", "1", "k"}, kExitUsage, {"--tiemout"});
  expect_refused({"keys", where_, "--timeout", "1"}, kExitUsage, {"'--timeout'"});
  expect_refused({"get", where_, "k", "--timeout"}, kExitUsage, {"'--timeout'"});
  expect_refused({"get", where_, "k", "--timeout", "soon"}, kExitInvalidValue, {"soon"});
  expect_refused({"get", where_, "k", "--timeout", "1e9"}, kExitInvalidValue, {"from 0 to"});
  expect_refused({"get", "::1:29400", "k"}, kExitInvalidValue, {"brackets", "[fd00::1]:29400"});
  expect_refused({"get", "localhost:x", "k"}, kExitInvalidValue, {"from 1 to 65535"});
  const std::string nobody = "127.0.0.1:" + std::to_string(free_port());
  expect_refused({"get", nobody, "k"}, kExitJoinTimeout, {nobody, "Connection refused"});
}

TEST_F(ClientCommandsTest, ReachAnIPv6AddressInBrackets) {
  ASSERT_TRUE(store_->set("k", "v"));
  const std::string port = where_.substr(where_.rfind(':') + 1);
  const Finished finished = call({"get", "[::1]:" + port, "k"});
  if (finished.status == kExitJoinTimeout)
    GTEST_SKIP() << "this machine has no IPv6 loopback: " << finished.err;
  EXPECT_EQ(finished.out, "v");
}

TEST_F(ClientCommandsTest, HelpListsThemAll) {
  const Finished help = call({"get", "--help"});
  EXPECT_EQ(help.status, kExitSuccess);
  for (const char* const name : {"get", "keys"}) {
    EXPECT_NE(help.out.find(std::string("ddp-rendezvous ") + name), std::string::npos) << help.out;
  }
  EXPECT_NE(call({"--help"}).out.find("get --help"), std::string::npos);
}

}  // namespace
}  // namespace ddp::test
