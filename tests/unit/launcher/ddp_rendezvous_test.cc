// The program ddp-rendezvous: its flags, exit codes and behaviour.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "common/base/exit_codes.h"
#include "common/base/unique_fd.h"
#include "tests/support/listener.h"
#include "tests/support/pipe.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"
#include "tests/support/raw_client.h"
#include "tests/support/temp_dir.h"

namespace ddp::test {
namespace {

TEST(DdpRendezvousTest, ListensAndEndsAtASignalWithOpenConnections) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Process daemon({bin("ddp-rendezvous"), "--port", "0", "--bind", "127.0.0.1"});
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

int port_of(const Process& daemon) {
  const std::string out = daemon.out();
  return std::stoi(out.substr(out.rfind(':') + 1));
}

// Whether it answers GETNUMKEYS.
bool serves(RawClient& client) {
  client.send("\x06");
  return client.receive(8).size() == 8;
}

TEST(DdpRendezvousTest, ListensOnIPv4AndIPv6) {
  Process daemon({bin("ddp-rendezvous"), "--port", "0"});
  ASSERT_TRUE(daemon.prints("\n")) << daemon.err();
  RawClient v4(port_of(daemon));
  RawClient v6(port_of(daemon), 0, AF_INET6);
  v4.send(std::string("\x03\x01\0\0\0\0\0\0\0n\x05\0\0\0\0\0\0\0", 18));
  EXPECT_EQ(v4.receive(8)[0], '\x05');
  v6.send(std::string("\x03\x01\0\0\0\0\0\0\0n\x02\0\0\0\0\0\0\0", 18));
  EXPECT_EQ(v6.receive(8)[0], '\x07') << "one store";
}

// As behind `| head -1`.
TEST(DdpRendezvousTest, GoesOnWhenNobodyReadsItsLog) {
  Pipe log;
  Process daemon(
      {"sh", "-c", "exec \"$0\" --port 0 --bind 127.0.0.1 2>&" + std::to_string(log.write.get()),
       bin("ddp-rendezvous")},
      {.environment = {}, .folder = "", .inherited = {log.write.get()}});
  ASSERT_TRUE(daemon.prints("\n"));
  log.write.reset();
  log.read.reset();
  RawClient stranger(port_of(daemon));
  stranger.send(
      "\xDD"
      "DPR\x09");  // Of a version that nobody knows: a line says so.
  (void)stranger.receive(1);
  RawClient client(port_of(daemon));
  EXPECT_TRUE(serves(client));
}

TEST(DdpRendezvousTest, SaysOnceThatItIsOpenToAllWhereItIs) {
  const TempDir folder;
  const std::string token = folder.write("token", "a token of this test", 0600);
  struct Case {
    std::vector<std::string> flags;
    bool warns;
  };
  const std::vector<Case> cases{
      {{}, true}, {{"--bind", "127.0.0.1"}, false}, {{"--rdzv-token-file", token}, false}};
  for (const Case& one : cases) {
    std::vector<std::string> command{bin("ddp-rendezvous"), "--port", "0"};
    command.insert(command.end(), one.flags.begin(), one.flags.end());
    Process daemon(command);
    ASSERT_TRUE(daemon.prints("\n")) << daemon.err();
    const std::string err = daemon.err();
    EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), one.warns ? 1 : 0) << err;
    EXPECT_EQ(err.find("--rdzv-token-file") != std::string::npos, one.warns) << err;
  }
}

TEST(DdpRendezvousTest, TokenFilesThatOthersMayReadAreRefused) {
  const TempDir folder;
  const std::string token = folder.write("token", "a token of this test", 0644);
  const Finished daemon = run({bin("ddp-rendezvous"), "--port", "0", "--rdzv-token-file", token});
  EXPECT_EQ(daemon.status, kExitInvalidValue);
  EXPECT_NE(daemon.err.find("chmod 600 " + token), std::string::npos) << daemon.err;
  const Finished half = run({bin("ddp-rendezvous"), "--port", "0", "--tls-cert", token});
  EXPECT_EQ(half.status, kExitInvalidValue);
  EXPECT_NE(half.err.find("--tls-key"), std::string::npos) << half.err;
}

TEST(DdpRendezvousTest, SaysOnceWhyItTurnsConnectionsAway) {
  Process daemon(
      {bin("ddp-rendezvous"), "--port", "0", "--bind", "127.0.0.1", "--max-connections", "2"});
  ASSERT_TRUE(daemon.prints("\n")) << daemon.err();
  RawClient first(port_of(daemon)), second(port_of(daemon));
  ASSERT_TRUE(serves(first) && serves(second));
  for (int i = 0; i < 50; ++i) {
    RawClient more(port_of(daemon));
    EXPECT_TRUE(more.is_closed_by_peer());
  }
  EXPECT_TRUE(serves(first));
  const std::string err = daemon.err();
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
  EXPECT_NE(err.find("2 are open"), std::string::npos) << err;
  EXPECT_NE(err.find("--max-connections"), std::string::npos) << err;
}

TEST(DdpRendezvousTest, TakesOldClientsForWhatItIsTold) {
  for (const auto& [release, answer] : {std::pair("2.1", 8u), std::pair("1.13", 1u)}) {
    Process daemon({bin("ddp-rendezvous"), "--port", "0", "--old-clients", release});
    ASSERT_TRUE(daemon.prints("\n")) << daemon.err();
    RawClient client(port_of(daemon));
    // DELETE_KEY answers with a number, WATCH_KEY with one byte; then the number of keys.
    client.send(std::string("\x07\x01\0\0\0\0\0\0\0n\x06", 11));
    client.receive(answer);
    EXPECT_EQ(client.receive(8).size(), 8u) << release;
  }
}

TEST(DdpRendezvousTest, EndsWithStandardInputIfAsked) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  ProcessOptions options;
  options.input = ends[0];
  Process daemon({bin("ddp-rendezvous"), "--port", "0", "--until-eof"}, options);
  ::close(ends[0]);
  ASSERT_TRUE(daemon.prints("\n")) << daemon.err();
  RawClient client(port_of(daemon));
  EXPECT_TRUE(serves(client));
  ASSERT_EQ(::write(ends[1], "ignored", 7), 7);
  EXPECT_TRUE(serves(client));
  EXPECT_FALSE(daemon.has_ended());
  ::close(ends[1]);
  EXPECT_EQ(daemon.wait(), kExitSuccess);
  EXPECT_TRUE(client.is_closed_by_peer());
}

// epoll has no place for these: what scripts give to a program in the background.
TEST(DdpRendezvousTest, EndsWithAStandardInputThatIsAFile) {
  for (const char* file : {"/dev/null", "/proc/self/status"}) {
    UniqueFd input(::open(file, O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(input);
    ProcessOptions options;
    options.input = input.get();
    Process daemon({bin("ddp-rendezvous"), "--port", "0", "--until-eof"}, options);
    EXPECT_EQ(daemon.wait(), kExitSuccess) << file << daemon.err();
  }
}

TEST(DdpRendezvousTest, APortInUseIsOneLineAndItsOwnStatus) {
  const ListeningSocket taken;
  const std::string port = std::to_string(taken.port());
  const Finished finished = run({bin("ddp-rendezvous"), "--bind", "127.0.0.1", "--port", port});
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
      {{"--max-connections", "0"}, kExitInvalidValue},
      {{"--max-connections", "40000000000"}, kExitInvalidValue},
      {{"--max-value-bytes", "8MB"}, kExitInvalidValue},
      {{"--max-value-bytes", "17179869184G"}, kExitInvalidValue},
      {{"--max-value-bytes", "-1"}, kExitInvalidValue},
      {{"--max-value-bytes", ""}, kExitInvalidValue},
      {{"--old-clients", "2.2"}, kExitInvalidValue},
      {{"--prot", "1"}, kExitUsage},
      {{"--por", "1"}, kExitUsage},
      {{"29400"}, kExitUsage},
      {{"--port"}, kExitUsage}};
  for (auto [arguments, status] : cases) {
    // The value that is wrong, or the flag that is unknown or lacks its value.
    const std::string shown = status == kExitUsage ? arguments.front() : arguments.back();
    arguments.insert(arguments.begin(), bin("ddp-rendezvous"));
    const Finished finished = run(arguments);
    EXPECT_EQ(finished.status, status) << shown << ": " << finished.err;
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
    EXPECT_NE(finished.err.find(shown), std::string::npos) << finished.err;
    EXPECT_EQ(finished.out, "") << finished.out;
    if (status != kExitInvalidValue) continue;
    EXPECT_NE(finished.err.find(arguments.at(1)), std::string::npos)
        << "the flag: " << finished.err;
  }
}

TEST(DdpRendezvousTest, MoreConnectionsThanDescriptorsNameTheLimitOfOpenFiles) {
  const Finished finished =
      run({"/bin/sh", "-c",
           "ulimit -n 100; exec " + bin("ddp-rendezvous") + " --port 0 --max-connections 100"});
  EXPECT_EQ(finished.status, kExitInvalidValue);
  for (const char* const text : {"--max-connections 100", "limit of open files is 100", "ulimit"}) {
    EXPECT_NE(finished.err.find(text), std::string::npos) << finished.err;
  }
}

TEST(DdpRendezvousTest, PrintsItsVersionAndItsFlags) {
  const Finished version = run({bin("ddp-rendezvous"), "--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_TRUE(version.out.starts_with("ddp-rendezvous ")) << version.out;
  const Finished help = run({bin("ddp-rendezvous"), "--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.out.find("--bind"), std::string::npos);
}

}  // namespace
}  // namespace ddp::test
