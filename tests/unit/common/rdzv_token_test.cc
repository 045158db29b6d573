// The job's token: where it comes from and who may see it.
#include "common/config/rdzv_token.h"

#include <sys/stat.h>

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/config/job_spec.h"
#include "tests/support/temp_dir.h"

namespace ddp::config {
namespace {

using testing::HasSubstr;

constexpr const char* kText = "0123456789abcdef";

class TokenFileTest : public testing::Test {
 protected:
  std::string write(const std::string& text, mode_t mode = 0600) const {
    return folder_.write("token", text, mode);
  }
  std::string path(const std::string& name) const { return folder_.path() / name; }
  test::TempDir folder_;
};

TEST(Token, MadeOnesAreLongAndDiffer) {
  const Secret token = make_token();
  EXPECT_EQ(token.reveal().size(), 64u);
  EXPECT_EQ(token.reveal().find_first_not_of("0123456789abcdef"), std::string_view::npos);
  EXPECT_NE(token.reveal(), make_token().reveal());
  EXPECT_TRUE(parse_token(token.reveal()));
}

TEST(Token, IsOneLineOfAtLeastSixteenCharacters) {
  EXPECT_EQ(parse_token(kText).value().reveal(), kText);
  EXPECT_EQ(parse_token(std::string(kText) + "\n").value().reveal(), kText);
  EXPECT_EQ(parse_token(std::string(kText) + "\r\n").value().reveal(), kText);
  EXPECT_EQ(parse_token("with blanks, \xc3\xbc and %").value().reveal(),
            "with blanks, \xc3\xbc and %");
  EXPECT_TRUE(parse_token(std::string(kMaxTokenBytes, 'x')));
  for (const std::string& wrong : {std::string(), std::string("\n"), std::string("0123456789abcde"),
                                   std::string(kMaxTokenBytes + 1, 'x'),
                                   std::string("0123456789\nabcdef"), std::string(16, '\0')}) {
    const auto token = parse_token(wrong);
    ASSERT_FALSE(token) << wrong;
    EXPECT_EQ(token.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(token.error().message, HasSubstr("openssl rand -hex 32"));
    EXPECT_THAT(token.error().message, testing::Not(HasSubstr("0123456789")));
  }
}

TEST_F(TokenFileTest, IsReadWithoutItsLineBreak) {
  EXPECT_EQ(read_token_file(write(std::string(kText) + "\n")).value().reveal(), kText);
  EXPECT_EQ(read_token_file(write(kText, 0400)).value().reveal(), kText);
  EXPECT_EQ(
      read_token_file(write(std::string(kMaxTokenBytes, 'x') + "\r\n")).value().reveal().size(),
      kMaxTokenBytes);
}

TEST_F(TokenFileTest, ThatOthersMayReadIsRefusedWithTheRemedy) {
  for (const mode_t mode : {0644u, 0640u, 0604u, 0620u, 0666u}) {
    const std::string file = write(kText, mode);
    const auto token = read_token_file(file);
    ASSERT_FALSE(token) << std::oct << mode;
    EXPECT_THAT(token.error().message, HasSubstr("chmod 600 " + file));
    EXPECT_THAT(token.error().message, testing::Not(HasSubstr(kText)));
  }
}

TEST_F(TokenFileTest, ThatIsNoneIsRefusedByName) {
  const std::string missing = path("missing");
  EXPECT_THAT(read_token_file(missing).error().message, HasSubstr(missing));
  EXPECT_THAT(read_token_file(folder_.path()).error().message, HasSubstr("is not a regular file"));
  EXPECT_THAT(read_token_file("/dev/null").error().message, HasSubstr("is not a regular file"));
  const std::string pipe = path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(read_token_file(pipe).error().message, HasSubstr("is not a regular file"));
  EXPECT_THAT(read_token_file(write("short")).error().message, HasSubstr("too short"));
  EXPECT_THAT(read_token_file(write(std::string(kMaxTokenBytes + 5, 'x'))).error().message,
              HasSubstr("too long"));
}

TEST_F(TokenFileTest, WinsOverTheVariable) {
  const std::string good = write(std::string(kText) + "\n");
  EXPECT_TRUE(find_token(std::nullopt).value().empty());
  ::setenv(kTokenVariable, "", 1);
  EXPECT_TRUE(find_token(std::nullopt).value().empty());
  ::setenv(kTokenVariable, "short", 1);
  EXPECT_THAT(find_token(std::nullopt).error().message,
              testing::StartsWith("DDP_RDZV_TOKEN: a token has"));
  EXPECT_EQ(find_token(good).value().reveal(), kText);
  EXPECT_THAT(find_token("").error().message,
              testing::StartsWith("--rdzv-token-file : cannot be read"));
  ::unsetenv(kTokenVariable);
}

TEST(Token, LeavesTheEnvironmentAndItsMemory) {
  ::setenv(kTokenVariable, kText, 1);
  const char* const place = std::getenv(kTokenVariable);
  forget_token_variable();
  EXPECT_EQ(std::getenv(kTokenVariable), nullptr);
  EXPECT_EQ(std::string_view(place, 1), std::string_view("\0", 1));
  forget_token_variable();
}

TEST(Token, ReachesTheAgentInTheJobDescription) {
  JobSpec spec;
  spec.rdzv_token = Secret(kText);
  const auto read = decode_job_spec(encode(spec));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->rdzv_token.reveal(), kText);
  EXPECT_TRUE(decode_job_spec(encode(JobSpec{}))->rdzv_token.empty());
}

TEST(SecretTest, IsEmptyWhereItWasMovedFrom) {
  Secret first(kText);
  const Secret second = std::move(first);
  EXPECT_TRUE(first.empty());  // NOLINT(bugprone-use-after-move): what is tested.
  EXPECT_EQ(second.reveal(), kText);
  first = second;
  EXPECT_EQ(first.reveal(), kText);
}

}  // namespace
}  // namespace ddp::config
