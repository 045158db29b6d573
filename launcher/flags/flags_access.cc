// Flags that say who may join the job: --rdzv-token-file, DDP_RDZV_TOKEN, --tls-cert, --tls-key,
// --tls-ca, --any-user.
#include "launcher/flags/flags_access.h"

#include <array>
#include <string_view>
#include <utility>

#include "common/auth/crypto_library.h"
#include "common/config/rdzv_token.h"
#include "launcher/flags/flag_reader.h"

namespace ddp::flags {
namespace {

void read_token_flags(FlagReader& reader, Options& options) {
  if (const GivenFlag* given = reader.find("rdzv-token-file"); given != nullptr) {
    options.rdzv_token_file = given->value;
    return;
  }
  const char* const text = reader.environment(config::kTokenVariable);
  if (text == nullptr || *text == '\0') return;
  Result<Secret> token = config::parse_token(text);
  if (!token) return reader.wrong(config::kTokenVariable, "{}", token.error().message);
  options.rdzv_token = std::move(*token);
}

// Either all three flags are given or none.
void read_tls_flags(FlagReader& reader, config::TlsFiles& out) {
  struct Wanted {
    std::string_view name;
    std::string& file;
  };
  const std::array<Wanted, 3> all{
      {{"tls-cert", out.certificate}, {"tls-key", out.key}, {"tls-ca", out.ca}}};
  const GivenFlag* some = nullptr;
  for (const Wanted& one : all) {
    const GivenFlag* const given = reader.find(one.name);
    if (given == nullptr) continue;
    some = given;
    one.file = given->value;
  }
  for (const Wanted& one : all) {
    if (some == nullptr || !one.file.empty()) continue;
    reader.wrong(
        some->shown,
        "--{} is missing; TLS needs this node's certificate (--tls-cert), its key (--tls-key) and "
        "the certificate of the authority that signs the certificates of all nodes (--tls-ca)",
        one.name);
  }
}

}  // namespace

void read_access_flags(FlagReader& reader, Options& options) {
  read_token_flags(reader, options);
  read_tls_flags(reader, options.tls);
  options.spec.any_user = reader.has("any-user");
}

Result<Secret> job_token(const Options& options) {
  Secret token = options.rdzv_token;
  if (!options.rdzv_token_file.empty()) {
    Result<Secret> read = config::read_token_file(options.rdzv_token_file);
    if (!read) {
      return exit_error(kExitInvalidValue, "--rdzv-token-file {}", read.error().message);
    }
    token = std::move(*read);
  }
  if (token.empty()) return token;
  if (const auto crypto = auth::CryptoLibrary::load(); !crypto) {
    return exit_error(kExitInternal, "{}", crypto.error().message);
  }
  return token;
}

}  // namespace ddp::flags
