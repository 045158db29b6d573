// Who may join: the token's and the certificates' flags.
#include "launcher/flags/flags_access.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/launcher/ddp_run_lines.h"

namespace ddp::flags {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kToken = "a token of this test";

TEST(AccessFlags, TheTokenIsTheFilesOrTheVariables) {
  const test::TempDir folder;
  const std::string file = folder.write("token", "the token of the file\n", 0600);
  const Environment variable{{"DDP_RDZV_TOKEN", kToken}};
  const auto token = [](const Arguments& arguments, const Environment& environment) {
    return std::string(job_token(options_of(arguments, environment)).value().reveal());
  };
  EXPECT_EQ(token({"a"}, {}), "");
  EXPECT_EQ(token({"a"}, {{"DDP_RDZV_TOKEN", ""}}), "");
  EXPECT_EQ(token({"a"}, variable), kToken);
  EXPECT_EQ(token({"--rdzv-token-file", file, "a"}, {}), "the token of the file");
  EXPECT_EQ(token({"--rdzv_token_file", file, "a"}, variable), "the token of the file");
  EXPECT_EQ(token({"a"}, {{"PET_RDZV_TOKEN_FILE", file}}), "the token of the file");
}

TEST(AccessFlags, AFileThatOthersMayReadIsRefused) {
  const test::TempDir folder;
  const std::string file = folder.write("token", kToken, 0644);
  const auto token = job_token(options_of({"--rdzv-token-file", file, "a"}));
  ASSERT_FALSE(token);
  EXPECT_EQ(exit_code_of(token.error()), 64);
  EXPECT_THAT(token.error().message, HasSubstr("--rdzv-token-file " + file + ": "));
  EXPECT_THAT(token.error().message, HasSubstr("chmod 600"));
  EXPECT_THAT(token.error().message, Not(HasSubstr(kToken)));
}

TEST(AccessFlags, CertificatesComeTogether) {
  const Options options =
      options_of({"--tls-cert", "node.pem", "--tls-key=node.key", "--tls_ca", "ca.pem", "a"});
  EXPECT_EQ(options.tls.certificate, "node.pem");
  EXPECT_EQ(options.tls.key, "node.key");
  EXPECT_EQ(options.tls.ca, "ca.pem");
  EXPECT_FALSE(options_of({"a"}).tls.any());
}

INSTANTIATE_TEST_SUITE_P(
    Access, WrongLine,
    testing::Values(
        Wrong{{"a"},
              64,
              "DDP_RDZV_TOKEN: a token has 16 to 4096 characters, this one is too short; `openssl "
              "rand "
              "-hex 32` makes one",
              {{"DDP_RDZV_TOKEN", "brief"}}},
        Wrong{{"--tls-key", "k", "--tls-ca", "c", "a"},
              64,
              "--tls-ca c: --tls-cert is missing; TLS needs this node's certificate (--tls-cert), "
              "its key (--tls-key) and the certificate of the authority that signs the "
              "certificates of all nodes (--tls-ca)"},
        Wrong{{"--tls-cert", "c", "a"},
              64,
              "--tls-cert c: --tls-key is missing; TLS needs this node's certificate (--tls-cert), "
              "its key (--tls-key) and the certificate of the authority that signs the "
              "certificates of all nodes (--tls-ca)"}));

}  // namespace
}  // namespace ddp::flags
