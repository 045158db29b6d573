// ddp-rendezvous get, set, add, wait, keys, del: what they print, say and exit with.
#include <algorithm>

#include <gtest/gtest.h>

#include "common/base/exit_codes.h"
#include "tests/support/listener.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"
#include "tests/support/temp_dir.h"

namespace ddp::test {
namespace {

class ClientCommandsTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(daemon_.prints("\n")) << daemon_.err();
    const std::string out = daemon_.out();
    where_ = "127.0.0.1:" + out.substr(out.rfind(':') + 1);
    where_.pop_back();
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
};

TEST_F(ClientCommandsTest, ProveThatTheyKnowTheToken) {
  const TempDir folder;
  const std::string file = folder.write("token", "a token of this test", 0600);
  const std::string other = folder.write("other", "another token of this test", 0600);
  Process daemon(
      {bin("ddp-rendezvous"), "--port", "0", "--bind", "127.0.0.1", "--rdzv-token-file", file});
  ASSERT_TRUE(daemon.prints("\n")) << daemon.err();
  const std::string unguarded = where_;
  where_ = daemon.out().substr(daemon.out().rfind(' ') + 1);
  where_.pop_back();
  expect({"set", "--rdzv-token-file", file, where_, "k", "v"}, "");
  expect({"get", where_, "k", "--rdzv-token-file=" + file}, "v");
  expect({"get", where_, "k"}, "v");  // From this machine without, as PyTorch's clients.
  expect_refused({"get", where_, "k", "--rdzv-token-file", other}, kExitRefused,
                 {where_, "another token"});
  expect_refused({"get", unguarded, "k", "--rdzv-token-file", file}, kExitRefused,
                 {unguarded, "it has no token"});
  expect_refused({"get", where_, "k", "--rdzv-token-file", "/no/file"}, kExitInvalidValue,
                 {"--rdzv-token-file /no/file"});
  expect_refused({"get", where_, "k", "--rdzv-token-file"}, kExitUsage, {"lacks its value"});
}

TEST_F(ClientCommandsTest, DoWhatTheySay) {
  expect({"set", where_, "k", "two words\n"}, "");
  expect({"get", where_, "k"}, "two words\n");
  expect({"add", where_, "n", "5"}, "5\n");
  expect({"add", where_, "n", "-7"}, "-2\n");
  expect({"set", where_, "--", "--flag", "--timeout"}, "");
  expect({"keys", where_}, "--flag\nk\nn\n");
  expect({"keys", where_, "n"}, "n\n");
  expect({"wait", "--timeout", "0", where_, "k", "n"}, "");
  expect({"del", where_, "k"}, "");
  expect({"set", where_, "empty", ""}, "");
  expect({"get", "--timeout=5", where_, "empty"}, "");
}

TEST_F(ClientCommandsTest, ReadAValueFromStandardInput) {
  const Finished finished =
      run({"/bin/sh", "-c", "printf 'a\\000b' | \"$0\" set " + where_ + " bytes -",
           bin("ddp-rendezvous")});
  ASSERT_EQ(finished.status, 0) << finished.err;
  expect({"get", where_, "bytes"}, std::string("a\0b", 3));
}

TEST_F(ClientCommandsTest, AMissingKeyIsSaidAtOnceUnlessToldToWait) {
  expect_refused({"get", where_, "absent"}, kExitKeyMissing,
                 {"ddp-rendezvous get:", "'absent'", "keys " + where_, "--timeout"});
  expect_refused({"del", where_, "absent"}, kExitKeyMissing, {"'absent'"});
  expect_refused({"wait", "--timeout", "0.02", where_, "absent", "n"}, kExitKeyMissing,
                 {"'absent', 'n'", "20 ms"});
  Process waiter({bin("ddp-rendezvous"), "get", "--timeout", "20", where_, "late"});
  expect({"set", where_, "late", "v"}, "");
  EXPECT_EQ(waiter.wait(), kExitSuccess) << waiter.err();
  EXPECT_EQ(waiter.out(), "v");
}

TEST_F(ClientCommandsTest, WrongLinesAreRefusedInOneLine) {
  expect_refused({"get", where_}, kExitUsage, {"HOST[:PORT] KEY"});
  expect_refused({"set", where_, "k"}, kExitUsage, {"KEY VALUE"});
  expect_refused({"get", where_, "--tiemout", "1", "k"}, kExitUsage, {"--tiemout"});
  expect_refused({"del", where_, "k", "--timeout", "1"}, kExitUsage, {"'--timeout'"});
  expect_refused({"get", where_, "k", "--timeout"}, kExitUsage, {"--timeout lacks its value"});
  expect_refused({"get", where_, "k", "--timeout", "soon"}, kExitInvalidValue, {"soon"});
  expect_refused({"get", "::1:29400", "k"}, kExitInvalidValue, {"brackets", "[fd00::1]:29400"});
  expect_refused({"get", "localhost:x", "k"}, kExitInvalidValue, {"from 1 to 65535"});
  expect_refused({"add", where_, "n", "one"}, kExitInvalidValue, {"'one'"});
  const std::string nobody = "127.0.0.1:" + std::to_string(free_port());
  expect_refused({"get", nobody, "k"}, kExitJoinTimeout, {nobody, "Connection refused"});
}

TEST_F(ClientCommandsTest, ReachAnIPv6AddressInBrackets) {
  const std::string port = where_.substr(where_.rfind(':') + 1);
  if (run({bin("ddp-rendezvous"), "set", "[::1]:" + port, "k", "v"}).status != kExitSuccess) {
    GTEST_SKIP() << "this machine has no IPv6 loopback";
  }
  expect({"get", where_, "k"}, "v");
}

TEST_F(ClientCommandsTest, HelpListsThemAll) {
  const Finished help = call({"get", "--help"});
  EXPECT_EQ(help.status, kExitSuccess);
  for (const char* const name : {"get", "set", "add", "wait", "keys", "del"}) {
    EXPECT_NE(help.out.find(std::string("ddp-rendezvous ") + name), std::string::npos) << help.out;
  }
  EXPECT_NE(call({"--help"}).out.find("get --help"), std::string::npos);
}

}  // namespace
}  // namespace ddp::test
