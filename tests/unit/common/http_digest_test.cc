// HTTP's Digest. The expected responses are computed here as RFC 7616, 3.4.1 says; a client that
// others have written proves itself in tests/browser.
#include "common/auth/http_digest.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/auth/crypto_library.h"
#include "common/auth/hmac.h"

namespace ddp::auth {
namespace {

using testing::HasSubstr;
using testing::Not;
using Verdict = HttpDigest::Verdict;

constexpr std::int64_t kNow = 1'000;
constexpr const char* kJobToken = "the token of this test";

std::string hash(const std::string& text) {
  std::string out;
  for (const unsigned char byte : sha256(text)) out += fmt::format("{:02x}", byte);
  return out;
}

// The value of a field in quotes.
std::string field(const std::string& text, const std::string& name) {
  const std::size_t begin = text.find(name + "=\"") + name.size() + 2;
  return text.substr(begin, text.find('"', begin) - begin);
}

struct Answer {
  std::string user = "";
  std::string token = kJobToken;
  std::string uri = "/live";
  std::string nonce = "";

  // What a browser sends for a challenge.
  std::string to(const std::string& challenge) const {
    const std::string realm = field(challenge, "realm");
    const std::string from = nonce.empty() ? field(challenge, "nonce") : nonce;
    const std::string response = hash(fmt::format("{}:{}:00000001:c:auth:{}",
                                                  hash(fmt::format("{}:{}:{}", user, realm, token)),
                                                  from, hash("GET:" + uri)));
    return fmt::format(
        R"(Digest username="{}", realm="{}", nonce="{}", uri="{}", algorithm=SHA-256, )"
        R"(response="{}", qop=auth, nc=00000001, cnonce="c")",
        user, realm, from, uri, response);
  }
};

class Digest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(CryptoLibrary::load()); }
  HttpDigest digest_{Secret(kJobToken), "key"};
  Verdict judge(const std::string& authorization, std::int64_t now = kNow) const {
    return digest_.judge("GET", "/live", authorization, now);
  }
  std::string challenge() const { return digest_.challenge(kNow, false); }
};

TEST_F(Digest, HashesAsFips180Says) {
  EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_F(Digest, LetsInWhoKnowsTheToken) {
  EXPECT_EQ(judge(Answer{}.to(challenge())), Verdict::kAdmitted);
  EXPECT_EQ(judge(Answer{.user = "ada"}.to(challenge())), Verdict::kAdmitted);
  EXPECT_EQ(judge(""), Verdict::kNone);
  EXPECT_EQ(judge("Basic OnQ="), Verdict::kNone);
}

TEST_F(Digest, RefusesEverythingElse) {
  EXPECT_EQ(judge(Answer{.token = "another"}.to(challenge())), Verdict::kWrong);
  EXPECT_EQ(judge(Answer{.uri = "/output"}.to(challenge())), Verdict::kWrong);
  const std::string right = Answer{}.to(challenge());
  EXPECT_EQ(digest_.judge("HEAD", "/live", right, kNow), Verdict::kWrong);
  EXPECT_EQ(digest_.judge("GET", "/live?", right, kNow), Verdict::kWrong);
  for (std::size_t size = 7; size + 1 < right.size(); size += 5) {
    EXPECT_NE(judge(right.substr(0, size)), Verdict::kAdmitted) << size;
  }
  for (const char* text : {"Digest", "Digest =", "Digest a", "Digest a=\"", "Digest nonce=\"x\\"}) {
    EXPECT_NE(judge(text), Verdict::kAdmitted) << text;
  }
}

// Nobody else can make a challenge, and an old one does not hold for ever.
TEST_F(Digest, KnowsItsOwnChallenges) {
  const std::string other = HttpDigest(Secret(kJobToken), "other key").challenge(kNow, false);
  EXPECT_EQ(judge(Answer{}.to(other)), Verdict::kStale);
  const std::string mac = field(challenge(), "nonce").substr(4);
  EXPECT_EQ(judge(Answer{.nonce = "9999" + mac}.to(challenge())), Verdict::kStale);
  EXPECT_EQ(judge(Answer{.token = "another"}.to(other)), Verdict::kWrong);
  const std::string right = Answer{}.to(challenge());
  EXPECT_EQ(judge(right, kNow + HttpDigest::kNonceSeconds), Verdict::kAdmitted);
  EXPECT_EQ(judge(right, kNow + HttpDigest::kNonceSeconds + 1), Verdict::kStale);
  EXPECT_THAT(challenge(), Not(HasSubstr("stale")));
  EXPECT_THAT(digest_.challenge(kNow, true), HasSubstr("stale=true"));
}

}  // namespace
}  // namespace ddp::auth
