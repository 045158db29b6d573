// The program ddp-rendezvous: its flags, its exit codes, its manners.
#include <algorithm>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "common/base/exit_codes.h"
#include "tests/support/listener.h"
#include "tests/support/process.h"
#include "tests/support/raw_client.h"

namespace ddp::test {
namespace {

std::string program() {
  const char* const bin = ::getenv("DDP_BIN_DIR");
  return std::string(bin == nullptr ? "bin" : bin) + "/ddp-rendezvous";
}

TEST(DdpRendezvousTest, ListensAndEndsAtASignalWithOpenConnections) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Process daemon({program(), "--port", "0", "--bind", "127.0.0.1"});
    ASSERT_TRUE(daemon.prints("\n")) << daemon.err();
    const std::string out = daemon.out();
    ASSERT_TRUE(out.starts_with("listening on 127.0.0.1:")) << out;
    RawClient client(std::stoi(out.substr(out.rfind(':') + 1)));
    client.send("\x06");
    EXPECT_EQ(client.receive(8), std::string(8, '\0'));
    daemon.kill(signal);
    EXPECT_EQ(daemon.wait(), kExitSuccess);
    EXPECT_EQ(daemon.err(), "");
  }
}

TEST(DdpRendezvousTest, APortInUseIsOneLineAndItsOwnStatus) {
  const ListeningSocket taken;
  const std::string port = std::to_string(taken.port());
  const Finished finished = run({program(), "--bind", "127.0.0.1", "--port", port});
  EXPECT_EQ(finished.status, kExitPortInUse);
  EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
  EXPECT_NE(finished.err.find("127.0.0.1:" + port), std::string::npos) << finished.err;
  EXPECT_EQ(finished.out, "");
}

TEST(DdpRendezvousTest, BadFlagsAreOneLineEach) {
  const std::vector<std::pair<std::vector<std::string>, int>> cases = {
      {{"--port", "x"}, kExitInvalidValue},
      {{"--port", "65536"}, kExitInvalidValue},
      {{"--port", "-1"}, kExitInvalidValue},
      {{"--bind", "nowhere"}, kExitInvalidValue},
      {{"--bind", "192.0.2.1"}, kExitInvalidValue},
      {{"--prot", "1"}, kExitUsage},
      {{"--por", "1"}, kExitUsage},
      {{"29400"}, kExitUsage},
      {{"--port"}, kExitUsage}};
  for (auto [arguments, status] : cases) {
    // The value that is wrong, or the flag that is unknown or lacks its value.
    const std::string shown = status == kExitUsage ? arguments.front() : arguments.back();
    arguments.insert(arguments.begin(), program());
    const Finished finished = run(arguments);
    EXPECT_EQ(finished.status, status) << shown << ": " << finished.err;
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
    EXPECT_NE(finished.err.find(shown), std::string::npos) << finished.err;
  }
}

TEST(DdpRendezvousTest, PrintsItsVersionAndItsFlags) {
  const Finished version = run({program(), "--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_TRUE(version.out.starts_with("ddp-rendezvous ")) << version.out;
  const Finished help = run({program(), "--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.out.find("--bind"), std::string::npos);
}

}  // namespace
}  // namespace ddp::test
