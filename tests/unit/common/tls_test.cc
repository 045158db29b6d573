// TLS between nodes: who accepts whose certificate, in memory.
#include "common/net/tls.h"

#include <system_error>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/certificates.h"

namespace ddp::net {
namespace {

using test::Authority;
using testing::HasSubstr;

config::TlsFiles files_of(const Authority& authority, const std::string& name,
                          const Authority& trusted) {
  return {authority.certificate(name), authority.key(name), trusted.ca()};
}

std::shared_ptr<const TlsContext> context_of(const config::TlsFiles& files) {
  return TlsContext::create(files).value();
}

// Both ends of a connection and what they have heard.
struct Pair {
  Pair(const TlsContext& client_context, const std::string& name, const TlsContext& server_context)
      : client(client_context.client(name)), server(server_context.server()) {
    client->begin(to_server);
    server->begin(to_client);
  }

  // Carries bytes until none are under way, `piece` at a time.
  void settle(std::size_t piece = 1 << 20) {
    while (!to_server.empty() || !to_client.empty()) {
      deliver(*server, to_server, server_got, to_client, server_error, piece);
      deliver(*client, to_client, client_got, to_server, client_error, piece);
    }
  }

  static void deliver(StreamFilter& end, std::string& from, std::string& got, std::string& back,
                      std::string& error, std::size_t piece) {
    const std::string bytes = from.substr(0, piece);
    from.erase(0, bytes.size());
    if (bytes.empty() || !error.empty()) return;
    const Result<void> taken = end.receive(bytes, got, back);
    if (taken) return;
    EXPECT_EQ(taken.error().code, std::errc::permission_denied);
    error = taken.error().message;
  }

  std::unique_ptr<StreamFilter> client, server;
  std::string to_server, to_client;
  std::string client_got, server_got;
  std::string client_error, server_error;
};

class TlsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    own_ = new Authority;
    foreign_ = new Authority;
    own_->issue("node", "DNS:node0,IP:10.0.0.7");
    own_->issue("expired", "DNS:node0", test::Authority::Validity::kOver);
    foreign_->issue("node", "DNS:node0");
  }
  static void TearDownTestSuite() {
    delete own_;
    delete foreign_;
  }

  static inline Authority* own_ = nullptr;
  static inline Authority* foreign_ = nullptr;
};

TEST_F(TlsTest, NodesOfOneAuthorityTalkHoweverTheBytesAreCut) {
  const auto context = context_of(files_of(*own_, "node", *own_));
  for (const std::size_t piece : {1u, 7u, 1u << 20}) {
    for (const char* name : {"node0", "10.0.0.7", ""}) {
      Pair pair(*context, name, *context);
      pair.client->send("said before the handshake is done", pair.to_server);
      pair.settle(piece);
      EXPECT_EQ(pair.client_error + pair.server_error, "") << name;
      EXPECT_EQ(pair.server_got, "said before the handshake is done");
      const std::string much(300'000, 'm');
      pair.server->send(much, pair.to_client);
      EXPECT_EQ(pair.to_client.find("mmmmmmmm"), std::string::npos) << "it is encrypted";
      pair.settle(piece);
      EXPECT_EQ(pair.client_got, much);
      pair.server->finish(pair.to_client);
      pair.settle(piece);
      EXPECT_EQ(pair.client_error, "");
    }
  }
}

TEST_F(TlsTest, AForeignAuthorityIsRefusedByEitherSide) {
  const auto own = context_of(files_of(*own_, "node", *own_));
  const auto foreign = context_of(files_of(*foreign_, "node", *foreign_));
  // It trusts us, but we do not trust it.
  const auto intruder = context_of(files_of(*foreign_, "node", *own_));
  {
    Pair pair(*own, "node0", *foreign);
    pair.settle();
    EXPECT_THAT(pair.client_error, HasSubstr("its certificate is not accepted"));
    EXPECT_THAT(pair.server_error, HasSubstr("alert unknown ca"));
  }
  {
    Pair pair(*intruder, "node0", *own);
    pair.client->send("let me in", pair.to_server);
    pair.settle();
    EXPECT_THAT(pair.server_error, HasSubstr("its certificate is not accepted"));
    EXPECT_THAT(pair.client_error, HasSubstr("alert unknown ca"));
    EXPECT_EQ(pair.server_got, "");
  }
}

TEST_F(TlsTest, AnExpiredCertificateIsRefusedByEitherSide) {
  const auto own = context_of(files_of(*own_, "node", *own_));
  const auto expired = context_of(files_of(*own_, "expired", *own_));
  {
    Pair pair(*own, "node0", *expired);
    pair.settle();
    EXPECT_THAT(pair.client_error, HasSubstr("certificate has expired"));
    EXPECT_THAT(pair.server_error, HasSubstr("alert certificate expired"));
  }
  {
    Pair pair(*expired, "node0", *own);
    pair.settle();
    EXPECT_THAT(pair.server_error, HasSubstr("certificate has expired"));
    EXPECT_THAT(pair.client_error, HasSubstr("alert certificate expired"));
  }
}

TEST_F(TlsTest, AnotherNameIsRefusedAndSaid) {
  const auto own = context_of(files_of(*own_, "node", *own_));
  for (const char* name : {"node1", "10.0.0.8", "node0.example.org"}) {
    Pair pair(*own, name, *own);
    pair.settle();
    EXPECT_THAT(pair.client_error, HasSubstr("mismatch"));
    EXPECT_THAT(pair.client_error, HasSubstr(std::string("(expected: ") + name + ")"));
    EXPECT_THAT(pair.server_error, HasSubstr("alert"));
  }
}

TEST_F(TlsTest, WhatIsNoTlsIsRefused) {
  const auto own = context_of(files_of(*own_, "node", *own_));
  for (const std::string& bytes :
       {std::string("\x16\x03\x01\x00\x05hello", 10), std::string(100, '\x16'),
        std::string("\xDD"
                    "DPR\x01")}) {
    Pair pair(*own, "node0", *own);
    pair.to_server = bytes;
    pair.to_client.clear();
    pair.settle();
    EXPECT_EQ(pair.server_got, "");
  }
}

TEST_F(TlsTest, FilesThatAreNoneAreNamedWithTheirFlag) {
  const config::TlsFiles good = files_of(*own_, "node", *own_);
  EXPECT_THAT(TlsContext::create({"/no/cert", good.key, good.ca}).error().message,
              HasSubstr("--tls-cert /no/cert: No such file or directory; name"));
  EXPECT_THAT(TlsContext::create({good.certificate, "/no/key", good.ca}).error().message,
              HasSubstr("--tls-key /no/key"));
  EXPECT_THAT(TlsContext::create({good.certificate, good.key, "/no/ca"}).error().message,
              HasSubstr("--tls-ca /no/ca"));
  EXPECT_THAT(
      TlsContext::create({good.certificate, foreign_->key("node"), good.ca}).error().message,
      HasSubstr("--tls-key"));
  const test::TempDir folder;
  const std::string text = folder.write("text", "no certificate\n");
  EXPECT_THAT(TlsContext::create({text, good.key, good.ca}).error().message,
              HasSubstr("--tls-cert " + text));
}

}  // namespace
}  // namespace ddp::net
