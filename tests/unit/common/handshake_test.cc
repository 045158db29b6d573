// The bytes by which both ends of a rendezvous connection prove that they know the token.
#include "common/auth/handshake.h"

#include <system_error>

#include <gtest/gtest.h>

#include "common/auth/crypto_library.h"
#include "common/auth/hmac.h"

namespace ddp::auth {
namespace {

using Outcome = ServerHandshake::Outcome;

Nonce nonce_of(unsigned char fill) {
  Nonce nonce;
  nonce.fill(fill);
  return nonce;
}

ClientHandshake client_with(const std::string& token, unsigned char nonce = 1) {
  return {Secret(token), "job", nonce_of(nonce)};
}

ServerHandshake server_with(const std::string& token, unsigned char nonce = 2) {
  return {Secret(token), nonce_of(nonce)};
}

constexpr const char* kToken = "a token of this test";

class HandshakeTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(CryptoLibrary::load()); }
};

// RFC 4231, section 4.
struct Vector {
  std::string key;
  std::string data;
  std::string_view digest;  // As far as the RFC gives it.
};

std::string hex(const Mac& mac) {
  std::string text;
  for (const unsigned char byte : mac) text += fmt::format("{:02x}", byte);
  return text;
}

TEST_F(HandshakeTest, HmacIsThatOfRfc4231) {
  std::string counting;
  for (char byte = 1; byte <= 0x19; ++byte) counting += byte;
  const std::vector<Vector> vectors{
      {std::string(20, '\x0b'), "Hi There",
       "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {"Jefe", "what do ya want for nothing?",
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {std::string(20, '\xaa'), std::string(50, '\xdd'),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {counting, std::string(50, '\xcd'),
       "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {std::string(20, '\x0c'), "Test With Truncation", "a3b6167473100ee06e0c796c2955552b"},
      {std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First",
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
      {std::string(131, '\xaa'),
       "This is a test using a larger than block-size key and a larger than block-size data. The "
       "key "
       "needs to be hashed before being used by the HMAC algorithm.",
       "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
  };
  for (const Vector& vector : vectors) {
    EXPECT_TRUE(hex(hmac_sha256(vector.key, vector.data)).starts_with(vector.digest))
        << vector.data;
  }
}

TEST_F(HandshakeTest, ComparesSizesToo) {
  EXPECT_TRUE(equal_in_constant_time("same", "same"));
  EXPECT_FALSE(equal_in_constant_time("same", "sane"));
  EXPECT_FALSE(equal_in_constant_time("same", "samesame"));
  EXPECT_TRUE(equal_in_constant_time("", ""));
}

TEST_F(HandshakeTest, TwoThatKnowTheTokenAgreeHoweverTheBytesAreCut) {
  for (std::size_t piece = 1; piece < 300; piece = piece < 8 ? piece + 1 : 2 * piece) {
    ClientHandshake client = client_with(kToken);
    ServerHandshake server = server_with(kToken);
    std::string to_server = client.hello();
    std::string to_client;
    while (!to_server.empty() || !to_client.empty()) {
      if (!to_server.empty()) {
        to_client += server.receive(to_server.substr(0, piece));
        to_server.erase(0, piece);
      }
      if (!to_client.empty()) {
        const auto more = client.receive(to_client.substr(0, piece));
        ASSERT_TRUE(more) << more.error().message;
        to_server += *more;
        to_client.erase(0, piece);
      }
    }
    EXPECT_TRUE(client.done());
    EXPECT_EQ(server.outcome(), Outcome::kAdmitted) << piece;
    EXPECT_EQ(server.job_id(), "job");
    EXPECT_EQ(server.rest(), "");
    EXPECT_EQ(client.rest(), "");
  }
}

TEST_F(HandshakeTest, WhatComesBehindItIsKept) {
  ClientHandshake client = client_with(kToken);
  ServerHandshake server = server_with(kToken);
  const std::string proof = *client.receive(server.receive(client.hello()));
  const std::string verdict = server.receive(proof + "frames");
  EXPECT_EQ(server.rest(), "frames");
  ASSERT_TRUE(client.receive(verdict + "more"));
  EXPECT_TRUE(client.done());
  EXPECT_EQ(client.rest(), "more");
}

TEST_F(HandshakeTest, AnotherTokenIsRefusedAndTheClientIsTold) {
  ClientHandshake client = client_with("another token of this test");
  ServerHandshake server = server_with(kToken);
  const std::string verdict = server.receive(*client.receive(server.receive(client.hello())));
  EXPECT_EQ(server.outcome(), Outcome::kWrongToken);
  EXPECT_EQ(verdict.size(), 1u) << "nothing that a password could be tried on";
  const auto answer = client.receive(verdict);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, std::errc::permission_denied);
  EXPECT_NE(answer.error().message.find("another token"), std::string::npos);
}

TEST_F(HandshakeTest, ADaemonWithoutATokenIsNotBelieved) {
  ClientHandshake client = client_with(kToken);
  ServerHandshake server = server_with("");
  const std::string answer = server.receive(client.hello());
  EXPECT_EQ(server.outcome(), Outcome::kNoToken);
  const auto proof = client.receive(answer);
  ASSERT_FALSE(proof);
  EXPECT_EQ(proof.error().code, std::errc::permission_denied);
}

// A stranger who has taken the daemon's port admits everybody, but cannot show why.
TEST_F(HandshakeTest, ADaemonThatOnlyClaimsToKnowTheTokenIsNotBelieved) {
  ClientHandshake client = client_with(kToken);
  ServerHandshake daemon = server_with(kToken);
  const std::string proof = *client.receive(daemon.receive(client.hello()));
  const auto verdict = client.receive(std::string(1, '\0') + std::string(kMacBytes, 'x'));
  ASSERT_FALSE(verdict);
  EXPECT_EQ(verdict.error().code, std::errc::permission_denied);
}

TEST_F(HandshakeTest, AReflectedProofIsRefused) {
  // The daemon's nonce can be made the client's, so what tells the two proofs apart is the role.
  ClientHandshake client = client_with(kToken);
  ServerHandshake daemon = server_with(kToken);
  const std::string proof = *client.receive(daemon.receive(client.hello()));
  EXPECT_FALSE(client.receive(std::string(1, '\0') + proof));
}

TEST_F(HandshakeTest, ARecordedHandshakeIsOfNoUse) {
  ClientHandshake client = client_with(kToken);
  ServerHandshake first = server_with(kToken, 2);
  const std::string hello = client.hello();
  const std::string answer = first.receive(hello);
  const std::string proof = *client.receive(answer);
  const std::string verdict = first.receive(proof);
  ASSERT_EQ(first.outcome(), Outcome::kAdmitted);

  ServerHandshake second = server_with(kToken, 3);
  second.receive(hello);
  second.receive(proof);
  EXPECT_EQ(second.outcome(), Outcome::kWrongToken);

  ClientHandshake later = client_with(kToken, 4);
  ASSERT_TRUE(later.receive(answer));
  EXPECT_FALSE(later.receive(verdict));
  EXPECT_FALSE(later.done());
}

TEST_F(HandshakeTest, AChangedByteAnywhereIsNoticed) {
  ClientHandshake measure = client_with(kToken);
  const std::size_t hello_size = measure.hello().size();
  for (std::size_t at = 0; at < hello_size; ++at) {
    ClientHandshake client = client_with(kToken);
    ServerHandshake server = server_with(kToken);
    std::string hello = client.hello();
    hello[at] = static_cast<char>(hello[at] ^ 1);
    const auto proof = client.receive(server.receive(hello));
    if (proof && server.outcome() == Outcome::kPending) server.receive(*proof);
    EXPECT_NE(server.outcome(), Outcome::kAdmitted) << "byte " << at << " of the hello";
  }
  ServerHandshake server = server_with(kToken);
  const std::string answer = server.receive(measure.hello());
  for (std::size_t at = 0; at < answer.size(); ++at) {
    ClientHandshake client = client_with(kToken);
    ServerHandshake daemon = server_with(kToken);
    std::string changed = daemon.receive(client.hello());
    changed[at] = static_cast<char>(changed[at] ^ 1);
    const auto proof = client.receive(changed);
    if (proof) daemon.receive(*proof);
    EXPECT_NE(daemon.outcome(), Outcome::kAdmitted) << "byte " << at << " of the answer";
  }
}

TEST_F(HandshakeTest, WhatIsNoHelloIsRefusedAtItsFirstWrongByte) {
  const std::string preamble(kPreamble);
  const std::string nonce(kNonceBytes, 'n');
  struct Case {
    std::string bytes;
    Outcome outcome;
  };
  const std::vector<Case> cases{
      {preamble, Outcome::kPending},
      {preamble + "\x01", Outcome::kPending},
      {preamble.substr(0, 4) + "\x03", Outcome::kMalformed},
      {preamble + '\0' + "\x01j" + nonce, Outcome::kMalformed},  // No such purpose.
      {preamble + "\x03\x01j" + nonce, Outcome::kMalformed},     // Nor this one.
      {preamble + "\x01\x81" + std::string(129, 'j') + nonce, Outcome::kMalformed},
      {preamble + "\x01\x80" + std::string(128, 'j') + nonce, Outcome::kPending},
      {preamble + "\x01" + '\0' + nonce, Outcome::kPending},  // Nameless, but whole.
  };
  for (const Case& one : cases) {
    ServerHandshake server = server_with(kToken);
    server.receive(one.bytes);
    EXPECT_EQ(server.outcome(), one.outcome) << testing::PrintToString(one.bytes);
  }
}

TEST_F(HandshakeTest, AnotherProgramsAnswerIsNoRefusal) {
  ClientHandshake client = client_with(kToken);
  const auto answer = client.receive("SSH-2.0-OpenSSH_9.2\r\n");
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Errc::kProtocol);
}

TEST_F(HandshakeTest, NoncesDiffer) { EXPECT_NE(random_nonce(), random_nonce()); }

}  // namespace
}  // namespace ddp::auth
