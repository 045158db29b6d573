// Who may join a job, seen from outside: real nodes with the right token, a wrong one and none.
#include <algorithm>
#include <fstream>
#include <mutex>
#include <sstream>

#include "common/base/exit_codes.h"
#include "tests/process/ddp_run_fixture.h"
#include "tests/support/certificates.h"
#include "tests/support/raw_client.h"
#include "tests/support/relay.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kToken = "5ecret-of-this-test-and-no-other";
// Says who it is and stays until it may end.
constexpr const char* kStays =
    "echo $RANK of $WORLD_SIZE, round $DDP_ROUND; echo ${$} > $OUT/pid.$RANK; "
    "until [ -e $OUT/end ]; do sleep 0.02; done";

std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class DdpRunAccess : public DdpRunTest {
 protected:
  using Environment = std::map<std::string, std::string>;

  static Environment token(const std::string& text) { return {{"DDP_RDZV_TOKEN", text}}; }
  Process& start_node(int rank, const Environment& environment, Arguments more = {}) {
    more.insert(more.end(),
                {"--node-rank", std::to_string(rank), "--join-timeout", "60", "sh", "-c", kStays});
    return start(node(2, port_, more), environment);
  }
  void let_end() { folder_.write("end", ""); }

  // Value of one of the daemon's counters.
  std::string refused(const std::string& reason) const {
    const std::string page = http_get(port_, "/metrics");
    const std::string name = "ddp_refused_total{reason=\"" + reason + "\"} ";
    const std::size_t at = page.find("\n" + name);
    if (at == std::string::npos) return "absent";
    const std::size_t begin = at + 1 + name.size();
    return page.substr(begin, page.find('\n', begin) - begin);
  }

  const int port_ = free_port();
};

TEST_F(DdpRunAccess, OnlyNodesThatKnowTheTokenAreLetInAndTheJobIsNotDisturbed) {
  Process& first = start_node(0, token(kToken));
  Process& second = start_node(1, token(kToken));
  ASSERT_TRUE(first.prints("0 of 2, round 0")) << first.err();
  ASSERT_TRUE(second.prints("1 of 2, round 0")) << second.err();

  const auto refuse = [&](const Environment& environment, const std::string& reason) {
    Process& stranger =
        start(node(2, port_, {"--rdzv-conf", "is_host=false", "true"}), environment);
    EXPECT_EQ(stranger.wait(), kExitRefused) << stranger.err();
    EXPECT_THAT(stranger.err(), HasSubstr(reason));
    return stranger.err();
  };
  EXPECT_THAT(refuse(token("another-secret-of-this-test"), "it has another token than this node"),
              Not(HasSubstr("secret-of")));
  refuse({}, "this job has a token, and this node has none");
  EXPECT_EQ(refused("wrong_token"), "1");
  EXPECT_EQ(refused("no_token"), "1");
  // One that would host, too, finds out and says so.
  const Finished host = run_job(node(2, port_, {"true"}), token("another-secret-of-this-test"));
  EXPECT_EQ(host.status, kExitRefused) << host.err;
  EXPECT_EQ(refused("wrong_token"), "2");

  EXPECT_THAT(first.err(), HasSubstr("refused 127.0.0.1:"));
  let_end();
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  // One line, of one round.
  EXPECT_EQ(first.out().find("round", first.out().find("round") + 1), std::string::npos)
      << first.out();
  EXPECT_THAT(first.err() + second.err(), Not(HasSubstr(kToken)));
}

TEST_F(DdpRunAccess, TheTokenIsInNobodysArgumentsAndNotInTheWorkersEnvironment) {
  const std::string file = folder_.write("token", std::string(kToken) + "\n", 0600);
  Process& first = start_node(0, token(kToken));
  Process& second = start_node(1, {}, {"--rdzv-token-file", file});
  ASSERT_TRUE(first.prints("0 of 2")) << first.err();
  ASSERT_TRUE(second.prints("1 of 2")) << second.err();
  for (const pid_t pid : alive()) {
    const std::string folder = "/proc/" + std::to_string(pid);
    EXPECT_THAT(file_text(folder + "/cmdline"), Not(HasSubstr(kToken))) << process_name(pid);
    EXPECT_THAT(file_text(folder + "/environ"), Not(HasSubstr(kToken))) << process_name(pid);
  }
  const std::string worker = "/proc/" + std::to_string(pid_in("pid.0")) + "/environ";
  EXPECT_THAT(file_text(worker), HasSubstr("MASTER_PORT="));
  EXPECT_THAT(file_text(worker), Not(HasSubstr("DDP_RDZV_TOKEN")));
  let_end();
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
}

TEST_F(DdpRunAccess, WhatAListenerOnTheNetworkHasHeardLetsNobodyIn) {
  std::mutex mutex;
  std::string heard;
  const Relay relay(port_, [&](Relay::Way way, std::string_view bytes) {
    const std::lock_guard lock(mutex);
    if (way == Relay::Way::kToServer) heard += bytes;
    return true;
  });
  Process& first = start_node(0, token(kToken));
  Process& second = start(node(2, relay.port(),
                               {"--rdzv-conf", "is_host=false", "--node-rank", "1",
                                "--join-timeout", "60", "sh", "-c", kStays}),
                          token(kToken));
  ASSERT_TRUE(first.prints("0 of 2, round 0")) << first.err();
  ASSERT_TRUE(second.prints("1 of 2, round 0")) << second.err();
  std::string recorded;
  {
    const std::lock_guard lock(mutex);
    recorded = heard;
  }
  EXPECT_THAT(recorded, HasSubstr("\"join\""));
  EXPECT_THAT(recorded, Not(HasSubstr(kToken)));

  RawClient thief(port_);
  thief.send(recorded);
  const std::string answer = thief.receive_all();
  EXPECT_EQ(answer.substr(0, 6), std::string("\xDD"
                                             "DPR\x02\0",
                                             6))
      << "its nonce follows";
  ASSERT_EQ(answer.size(), 5u + 1 + 32 + 1);
  EXPECT_EQ(answer.back(), '\x01') << "no proof";
  EXPECT_EQ(refused("wrong_token"), "1");

  let_end();
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  EXPECT_EQ(first.out().find("round", first.out().find("round") + 1), std::string::npos)
      << first.out();
}

TEST_F(DdpRunAccess, ADaemonOfItsOwnTakesTheTokenToo) {
  const std::string file = folder_.write("token", kToken, 0600);
  Process daemon(Arguments{bin("ddp-rendezvous"), "--port", std::to_string(port_), "--bind",
                           "127.0.0.1", "--rdzv-token-file", file});
  ASSERT_TRUE(daemon.prints("listening")) << daemon.err();
  Process& first = start_node(0, token(kToken));
  Process& second = start_node(1, token(kToken));
  ASSERT_TRUE(first.prints("0 of 2")) << first.err();
  const Finished stranger = run_job(node(2, port_, {"true"}));
  EXPECT_EQ(stranger.status, kExitRefused) << stranger.err;
  EXPECT_EQ(refused("no_token"), "2") << "the look whether somebody answers, and the agent";
  let_end();
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
}

TEST_F(DdpRunAccess, WhoWaitsInVainHearsOfTheToken) {
  const Finished job = run_job(node(2, port_, {"--join-timeout", "0.5", "true"}), token(kToken));
  EXPECT_EQ(job.status, kExitJoinTimeout);
  EXPECT_THAT(job.err, HasSubstr("--rdzv-id and token (--rdzv-token-file or DDP_RDZV_TOKEN)"));
}

// Somebody else has the port that the job's daemon should have.
TEST_F(DdpRunAccess, ARendezvousWithoutTheTokenIsNotObeyed) {
  Process daemon(
      Arguments{bin("ddp-rendezvous"), "--port", std::to_string(port_), "--bind", "127.0.0.1"});
  ASSERT_TRUE(daemon.prints("listening")) << daemon.err();
  const Finished node0 = run_job(node(2, port_, {"true"}), token(kToken));
  EXPECT_EQ(node0.status, kExitRefused) << node0.err;
  EXPECT_THAT(node0.err, HasSubstr("it has no token"));
}

TEST_F(DdpRunAccess, OnlyCertificatesOfTheJobsAuthorityAreLetInAndTheJobIsNotDisturbed) {
  Authority own, foreign;
  own.issue("node", "IP:127.0.0.1");
  own.issue("expired", "IP:127.0.0.1", test::Authority::Validity::kOver);
  own.issue("elsewhere", "DNS:node1");
  foreign.issue("node", "IP:127.0.0.1");
  const auto flags = [](const Authority& authority, const std::string& name,
                        const Authority& trusted) {
    return Arguments{"--tls-cert", authority.certificate(name),
                     "--tls-key",  authority.key(name),
                     "--tls-ca",   trusted.ca()};
  };
  Process& first = start_node(0, {}, flags(own, "node", own));
  Process& second = start_node(1, {}, flags(own, "elsewhere", own));  // A client's name may be any.
  ASSERT_TRUE(first.prints("0 of 2, round 0")) << first.err();
  ASSERT_TRUE(second.prints("1 of 2, round 0")) << second.err();

  const auto refuse = [&](Arguments more, const std::string& reason) {
    more.insert(more.end(), {"--rdzv-conf", "is_host=false", "true"});
    const Finished stranger = run_job(node(2, port_, more));
    EXPECT_EQ(stranger.status, kExitRefused) << stranger.err;
    EXPECT_THAT(stranger.err, HasSubstr(reason));
  };
  refuse(flags(foreign, "node", foreign), "its certificate is not accepted");
  refuse(flags(foreign, "node", own), "alert unknown ca");
  refuse(flags(own, "expired", own), "alert certificate expired");
  refuse({}, "it accepts TLS only");
  EXPECT_TRUE(wait_until([&] { return refused("tls") == "3"; })) << refused("tls");
  EXPECT_EQ(refused("no_tls"), "1");

  let_end();
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  EXPECT_EQ(first.out().find("round", first.out().find("round") + 1), std::string::npos)
      << first.out();
}

TEST_F(DdpRunAccess, TheRendezvousMustHaveTheEndpointsName) {
  Authority own;
  own.issue("node", "DNS:node1");
  const Finished job = run_job(node(2, port_,
                                    {"--tls-cert", own.certificate("node"), "--tls-key",
                                     own.key("node"), "--tls-ca", own.ca(), "true"}));
  EXPECT_EQ(job.status, kExitRefused) << job.err;
  EXPECT_THAT(job.err, HasSubstr("mismatch (expected: 127.0.0.1)"));
}

TEST_F(DdpRunAccess, CertificatesThatAreNoneAreNamed) {
  const Finished missing = run_job(node(2, port_, {"--tls-cert", "/no/file", "true"}));
  EXPECT_EQ(missing.status, kExitInvalidValue) << missing.err;
  EXPECT_THAT(missing.err, HasSubstr("--tls-key is missing"));
  const Finished wrong = run_job(node(
      2, port_, {"--tls-cert", "/no/file", "--tls-key", "/no/key", "--tls-ca", "/no/ca", "true"}));
  EXPECT_EQ(wrong.status, kExitInvalidValue) << wrong.err;
  EXPECT_THAT(wrong.err, HasSubstr("--tls-cert /no/file"));
}

TEST_F(DdpRunAccess, WrongTokensAreRefusedBeforeAnythingStarts) {
  const std::string open = folder_.write("open", kToken, 0644);
  const std::string brief = folder_.write("brief", "brief", 0600);
  const std::vector<std::pair<Finished, std::string>> cases{
      {run_job(node(2, port_, {"--rdzv-token-file", open, "true"})), "chmod 600 " + open},
      {run_job(node(2, port_, {"--rdzv-token-file", brief, "true"})), "too short"},
      {run_job(node(2, port_, {"--rdzv-token-file", "/no/file", "true"})), "/no/file: cannot be"},
      {run_job(node(2, port_, {"true"}), token("brief")), "DDP_RDZV_TOKEN: a token has 16"},
  };
  for (const auto& [job, reason] : cases) {
    EXPECT_EQ(job.status, kExitInvalidValue) << job.err;
    EXPECT_THAT(job.err, HasSubstr(reason));
    EXPECT_THAT(job.err, Not(HasSubstr(kToken)));
  }
}

}  // namespace
}  // namespace ddp::test
