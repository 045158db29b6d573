// Whom a daemon with a token admits, over real sockets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/auth/crypto_library.h"
#include "common/auth/handshake.h"
#include "common/base/host_port.h"
#include "common/net/frame_connection.h"
#include "common/store/tcp_store.h"
#include "common/wire/frame.h"
#include "common/wire/rendezvous_messages.h"
#include "tests/support/certificates.h"
#include "tests/support/event_loop.h"
#include "tests/support/process.h"
#include "tests/support/raw_agent.h"
#include "tests/support/raw_client.h"
#include "tests/support/server_thread.h"
#include "tests/support/store_request.h"

namespace ddp::server {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): deadlines of tests.
using net::FrameConnection;
using test::http_get;
using test::RawClient;
using test::ServerThread;
using testing::HasSubstr;

constexpr const char* kToken = "the token of this test";

ServerOptions with_token(const std::string& token) {
  ServerOptions options;
  options.token = Secret(token);
  return options;
}

// How often the daemon has refused somebody for this reason.
std::uint64_t refused(ServerThread& server, RefusalReason why) {
  std::uint64_t count = 0;
  server.call([&] { count = server.server().facts().refused[static_cast<std::size_t>(why)]; });
  return count;
}

wire::Join join_of_one(const std::string& job_id) {
  wire::Join join;
  join.job_id = job_id;
  join.node_id = "n0";
  join.host = "n0";
  join.rules.lease_ms = 3'600'000;  // They seldom say anything more, however slow this is.
  return join;
}

std::string frame_of(const wire::AgentMessage& message) {
  return wire::encode_frame(wire::encode(message));
}

std::string nth_frame(RawClient& client) {
  const std::string header = client.receive(wire::kFrameHeaderBytes);
  if (header.size() < wire::kFrameHeaderBytes) return {};
  std::size_t size = 0;
  for (unsigned i = 0; i < 4; ++i)
    size |= std::size_t{static_cast<unsigned char>(header[i])} << 8 * i;
  return client.receive(size);
}

class ServerAccess : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(auth::CryptoLibrary::load()); }

  Result<std::shared_ptr<FrameConnection>> connect(const ServerThread& server,
                                                   const std::string& token) {
    std::optional<Result<std::shared_ptr<FrameConnection>>> answer;
    FrameConnection::connect(
        io_, "127.0.0.1", server.port(), {.token = Secret(token), .job_id = "job"}, 20s,
        [&](Result<std::shared_ptr<FrameConnection>> result) { answer = std::move(result); });
    EXPECT_TRUE(test::run_until(io_, [&] { return answer.has_value(); }));
    return std::move(*answer);
  }

  // What the daemon answers to a job_id's join on this connection.
  std::string join(FrameConnection& connection, const std::string& job_id) {
    std::string first;
    bool ended = false;
    connection.start(
        [&](const std::string& frame) {
          if (first.empty()) first = frame;
        },
        [&](const Error&) { ended = true; });
    connection.send(wire::encode(wire::AgentMessage(join_of_one(job_id))));
    EXPECT_TRUE(test::run_until(io_, [&] { return !first.empty() || ended; }));
    connection.close();
    return first;
  }

  asio::io_context io_;
};

TEST_F(ServerAccess, AnAgentThatKnowsTheTokenIsLetIn) {
  ServerThread server(with_token(kToken));
  const auto connection = connect(server, kToken);
  ASSERT_TRUE(connection) << connection.error().message;
  EXPECT_THAT(join(**connection, "job"), HasSubstr("\"welcome\""));
  EXPECT_EQ(refused(server, RefusalReason::kWrongToken), 0u);
}

TEST_F(ServerAccess, AnotherTokenIsRefusedAndCounted) {
  ServerThread server(with_token(kToken));
  const auto connection = connect(server, "another token of this test");
  ASSERT_FALSE(connection);
  EXPECT_EQ(connection.error().code, std::errc::permission_denied);
  EXPECT_THAT(connection.error().message,
              HasSubstr("127.0.0.1:" + std::to_string(server.port()) + ": it has another token"));
  EXPECT_EQ(refused(server, RefusalReason::kWrongToken), 1u);
}

TEST_F(ServerAccess, AnAgentWithoutATokenIsToldWhatIsMissing) {
  ServerThread server(with_token(kToken));
  const auto connection = connect(server, "");
  ASSERT_TRUE(connection) << connection.error().message;
  const auto message = wire::decode_coordinator_message(join(**connection, "job"));
  ASSERT_TRUE(message);
  EXPECT_THAT(std::get<wire::Refused>(*message).message, HasSubstr("--rdzv-token-file"));
  EXPECT_EQ(refused(server, RefusalReason::kNoToken), 1u);
}

TEST_F(ServerAccess, ADaemonWithoutATokenIsNotBelieved) {
  ServerThread server;
  const auto connection = connect(server, kToken);
  ASSERT_FALSE(connection);
  EXPECT_EQ(connection.error().code, std::errc::permission_denied);
  EXPECT_THAT(connection.error().message, HasSubstr("it has no token"));
  EXPECT_EQ(refused(server, RefusalReason::kUnwanted), 1u);
}

TEST_F(ServerAccess, ItJoinsNoOtherJobThanItsOwn) {
  ServerThread server(with_token(kToken));
  const auto connection = connect(server, kToken);
  ASSERT_TRUE(connection);
  EXPECT_THAT(join(**connection, "another job"), HasSubstr("\"refused\""));
  EXPECT_EQ(refused(server, RefusalReason::kNotTheJobs), 1u);
}

// What a listener on the network has seen lets nobody in.
TEST_F(ServerAccess, AReplayedHandshakeIsRefused) {
  ServerThread server(with_token(kToken));
  auth::ClientHandshake honest(Secret(kToken), "job", auth::random_nonce());
  std::string proof;
  {
    RawClient client(server.port());
    client.send(honest.hello());
    proof = *honest.receive(client.receive(auth::kPreamble.size() + 1 + auth::kNonceBytes));
    client.send(proof + frame_of(join_of_one("job")));
    ASSERT_TRUE(honest.receive(client.receive(1 + 32)));
    ASSERT_TRUE(honest.done());
    EXPECT_THAT(nth_frame(client), HasSubstr("\"welcome\""));
  }
  RawClient thief(server.port());
  thief.send(honest.hello() + proof + frame_of(join_of_one("job")));
  const std::string answer = thief.receive_all();
  EXPECT_EQ(answer.size(), auth::kPreamble.size() + 1 + auth::kNonceBytes + 1);
  EXPECT_EQ(answer.back(), '\x01');
  EXPECT_EQ(refused(server, RefusalReason::kWrongToken), 1u);
}

TEST_F(ServerAccess, WhatIsNoHandshakeIsClosedAndCounted) {
  ServerThread server(with_token(kToken));
  RawClient client(server.port());
  client.send(std::string(auth::kPreamble) + "\x01\xff");
  EXPECT_TRUE(client.is_closed_by_peer());
  EXPECT_EQ(refused(server, RefusalReason::kMalformed), 1u);
  RawClient silent(server.port());  // Cut off in the middle; the daemon forgets it.
  silent.send(auth::kPreamble);
  silent.reset();
  EXPECT_TRUE(connect(server, kToken));
}

TEST_F(ServerAccess, StoreClientsOfThisMachineAndPagesStayOpen) {
  ServerThread server(with_token(kToken));
  const auto store = connect_tcp_store("127.0.0.1", server.port(), 20s);
  ASSERT_TRUE(store);
  EXPECT_TRUE((*store)->set("k", "v"));
  EXPECT_FALSE(connect(server, "another token of this test"));
  EXPECT_THAT(http_get(server.port(), "/metrics"),
              HasSubstr("\nddp_refused_total{reason=\"wrong_token\"} 1\n"));
}

class ServerTls : public ServerAccess {
 protected:
  static void SetUpTestSuite() {
    own_ = new test::Authority;
    foreign_ = new test::Authority;
    own_->issue("node", "IP:127.0.0.1");
    foreign_->issue("node", "IP:127.0.0.1");
  }
  static void TearDownTestSuite() {
    delete own_;
    delete foreign_;
  }

  static std::shared_ptr<const net::TlsContext> tls_of(const test::Authority& authority,
                                                       const test::Authority& trusted) {
    return net::TlsContext::create(
               {authority.certificate("node"), authority.key("node"), trusted.ca()})
        .value();
  }
  static ServerOptions with_tls(const std::string& token = "") {
    ServerOptions options = with_token(token);
    options.tls = tls_of(*own_, *own_);
    return options;
  }
  Result<std::shared_ptr<FrameConnection>> connect_by(const ServerThread& server,
                                                      net::Credentials credentials) {
    credentials.job_id = "job";
    std::optional<Result<std::shared_ptr<FrameConnection>>> answer;
    FrameConnection::connect(
        io_, "127.0.0.1", server.port(), credentials, 20s,
        [&](Result<std::shared_ptr<FrameConnection>> result) { answer = std::move(result); });
    EXPECT_TRUE(test::run_until(io_, [&] { return answer.has_value(); }));
    return std::move(*answer);
  }

  static inline test::Authority* own_ = nullptr;
  static inline test::Authority* foreign_ = nullptr;
};

TEST_F(ServerTls, AgentsTalkByTlsWithAndWithoutAToken) {
  for (const std::string token : {"", kToken}) {
    ServerThread server(with_tls(token));
    const auto connection = connect_by(
        server, {.token = Secret(token), .tls = tls_of(*own_, *own_), .tls_name = "127.0.0.1"});
    ASSERT_TRUE(connection) << connection.error().message;
    EXPECT_THAT(join(**connection, "job"), HasSubstr("\"welcome\"")) << token;
  }
}

TEST_F(ServerTls, AForeignCertificateIsRefusedByEitherSideAndCounted) {
  ServerThread server(with_tls());
  const auto distrusts = connect_by(server, {.tls = tls_of(*foreign_, *foreign_)});
  ASSERT_FALSE(distrusts);
  EXPECT_EQ(distrusts.error().code, std::errc::permission_denied);
  EXPECT_THAT(distrusts.error().message, HasSubstr("its certificate is not accepted"));
  const auto intrudes = connect_by(server, {.tls = tls_of(*foreign_, *own_)});
  ASSERT_FALSE(intrudes);
  EXPECT_EQ(intrudes.error().code, std::errc::permission_denied);
  EXPECT_THAT(intrudes.error().message, HasSubstr("unknown ca"));
  const auto elsewhere = connect_by(server, {.tls = tls_of(*own_, *own_), .tls_name = "node1"});
  ASSERT_FALSE(elsewhere);
  EXPECT_THAT(elsewhere.error().message, HasSubstr("mismatch"));
  EXPECT_TRUE(test::wait_until([&] { return refused(server, RefusalReason::kTls) == 3; }));
}

TEST_F(ServerTls, WhoComesWithoutItIsToldSo) {
  for (const std::string token : {"", kToken}) {
    ServerThread server(with_tls(token));
    const auto connection = connect_by(server, {.token = Secret(token)});
    if (token.empty()) {
      ASSERT_TRUE(connection);
      EXPECT_THAT(join(**connection, "job"), HasSubstr("--tls-cert"));
    } else {
      ASSERT_FALSE(connection);
      EXPECT_THAT(connection.error().message, HasSubstr("--tls-cert"));
    }
    EXPECT_EQ(refused(server, RefusalReason::kNoTls), 1u);
  }
}

TEST_F(ServerTls, ADaemonWithoutItSaysSo) {
  ServerThread server;
  const auto connection = connect_by(server, {.tls = tls_of(*own_, *own_)});
  ASSERT_FALSE(connection);
  EXPECT_EQ(connection.error().code, std::errc::permission_denied);
  EXPECT_THAT(connection.error().message, HasSubstr("alert handshake failure"));
  EXPECT_EQ(refused(server, RefusalReason::kTlsUnknown), 1u);
}

// Its own message says so, too (NetTest.AnotherVersionOfTheProtocolIsNamedWithARemedy).
TEST(ServerVersions, AnUnknownOneIsToldTheKnownOne) {
  ServerThread server;
  RawClient client(server.port());
  client.send(std::string(wire::kAnyPreamble) + "\x07");
  EXPECT_EQ(client.receive(wire::kRendezvousPreamble.size()), wire::kRendezvousPreamble);
  EXPECT_TRUE(client.is_closed_by_peer());
  EXPECT_EQ(refused(server, RefusalReason::kVersion), 1u);
}

// It goes on to serve the agent that has sent it.
TEST(ServerVersions, AMessageOfANewerReleaseIsIgnored) {
  ServerThread server;
  test::RawAgent agent(server.port());
  agent.send_frame(R"({"type":"dance","steps":3})");
  wire::Join join;
  join.job_id = "job";
  join.node_id = "node";
  join.release = "1000.0.0";
  agent.send(join);
  const auto welcome = agent.receive<wire::Welcome>();
  ASSERT_TRUE(welcome);
  EXPECT_THAT(welcome->notice, HasSubstr("1000.0.0"));
  agent.send_frame(R"({"type":"dance","steps":4})");
  agent.send(wire::Succeeded{0});
  EXPECT_TRUE(agent.receive<wire::Finish>());
}

TEST_F(ServerTls, StoreClientsOfThisMachineAndPagesNeedNone) {
  const ServerThread server(with_tls());
  const auto store = connect_tcp_store("127.0.0.1", server.port(), 20s);
  ASSERT_TRUE(store);
  EXPECT_TRUE((*store)->set("k", "v"));
  EXPECT_THAT(http_get(server.port(), "/status"), HasSubstr("200 OK"));
}

TEST(LoopbackTest, IsThisMachine) {
  EXPECT_TRUE(is_loopback("127.0.0.1"));
  EXPECT_TRUE(is_loopback("127.9.9.9"));
  EXPECT_TRUE(is_loopback("::1"));
  EXPECT_FALSE(is_loopback("10.127.0.1"));
  EXPECT_FALSE(is_loopback("127.evil.example"));
  EXPECT_FALSE(is_loopback("::2"));
  EXPECT_FALSE(is_loopback(""));
}

}  // namespace
}  // namespace ddp::server
