#include "agent/process/link_key.h"

#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/auth/crypto_library.h"

namespace ddp::agent {
namespace {

using wire::LinkProtection;

class LinkKeyTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(auth::CryptoLibrary::load()); }

  static config::JobSpec job(const std::string& token, bool tls = false) {
    config::JobSpec spec;
    spec.rdzv_token = Secret(token);
    if (tls) spec.tls = {.certificate = "node.pem", .key = "node.key", .ca = "ca.pem"};
    return spec;
  }
};

TEST_F(LinkKeyTest, WithoutANonceThereIsNone) {
  EXPECT_EQ(link_key(job("token", true), "").protection, LinkProtection::kNone);
}

// As in PROTOCOL.md:
//   printf 'ddp-run links 1\0nonce' | openssl dgst -sha256 -hmac token
TEST_F(LinkKeyTest, IsTheOneOfTheProtocol) {
  const wire::LinkKey key = link_key(job("token"), "nonce");
  EXPECT_EQ(key.protection, LinkProtection::kProven);
  std::string text;
  for (const unsigned char byte : key.bytes) text += fmt::format("{:02x}", byte);
  EXPECT_EQ(text, "ecffdd96bd9fc4c61319166c5abfd01f61853c29bb42dbb9b3d948fec1b00e05");
}

TEST_F(LinkKeyTest, AnotherTokenOrAnotherRoundHasAnotherKey) {
  const auto bytes = link_key(job("token"), "nonce").bytes;
  EXPECT_NE(link_key(job("tokem"), "nonce").bytes, bytes);
  EXPECT_NE(link_key(job("token"), "noncf").bytes, bytes);
  EXPECT_NE(link_key(job(""), "nonce").bytes, bytes);
}

TEST_F(LinkKeyTest, AJobWithTlsEncrypts) {
  EXPECT_EQ(link_key(job("", true), "nonce").protection, LinkProtection::kEncrypted);
  EXPECT_EQ(link_key(job("token", true), "nonce").protection, LinkProtection::kEncrypted);
}

}  // namespace
}  // namespace ddp::agent
