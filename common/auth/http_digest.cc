#include "common/auth/http_digest.h"

#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "common/auth/hmac.h"
#include "common/base/parse_number.h"
#include "common/base/random_hex.h"

namespace ddp::auth {
namespace {

constexpr std::string_view kScheme = "Digest ";
constexpr std::string_view kRealm = "ddp-run: the job's token is the password";

std::string hex(const Mac& mac) {
  std::string text;
  for (const unsigned char byte : mac) text += fmt::format("{:02x}", byte);
  return text;
}

bool is_separator(char c) { return c == ' ' || c == '\t' || c == ','; }

// `name=value, name="value", ...`; in quotes, a backslash stands before any character. Nothing if
// the text is not of this form.
std::optional<std::map<std::string, std::string, std::less<>>> parse_fields(std::string_view text) {
  std::map<std::string, std::string, std::less<>> fields;
  while (true) {
    while (!text.empty() && is_separator(text.front())) text.remove_prefix(1);
    if (text.empty()) return fields;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) return std::nullopt;
    const std::string name(text.substr(0, equals));
    text.remove_prefix(equals + 1);
    std::string value;
    if (text.starts_with('"')) {
      std::size_t at = 1;
      for (; at < text.size() && text[at] != '"'; ++at) {
        if (text[at] == '\\' && at + 1 < text.size()) ++at;
        value += text[at];
      }
      if (at >= text.size()) return std::nullopt;
      text.remove_prefix(at + 1);
    } else {
      while (!text.empty() && !is_separator(text.front())) {
        value += text.front();
        text.remove_prefix(1);
      }
    }
    fields.insert_or_assign(name, value);
  }
}

// RFC 7616, 3.4.1.
std::string response_of(std::string_view user, const Secret& token, std::string_view nonce,
                        std::string_view count, std::string_view client_nonce,
                        std::string_view method, std::string_view target) {
  const Secret secret(fmt::format("{}:{}:{}", user, kRealm, token.reveal()));
  const Secret proof(fmt::format("{}:{}:{}:{}:auth:{}", hex(sha256(secret.reveal())), nonce, count,
                                 client_nonce, hex(sha256(fmt::format("{}:{}", method, target)))));
  return hex(sha256(proof.reveal()));
}

}  // namespace

std::string http_digest_answer(std::string_view challenge, const Secret& token,
                               std::string_view method, std::string_view target) {
  if (!challenge.starts_with(kScheme)) return {};
  auto fields = parse_fields(challenge.substr(kScheme.size()));
  if (!fields || (*fields)["realm"] != kRealm) return {};
  constexpr std::string_view kUser = "ddp-run";
  constexpr std::string_view kCount = "00000001";
  const std::string client_nonce = random_hex(16);
  const std::string& nonce = (*fields)["nonce"];
  return fmt::format(
      R"(Digest username="{}", realm="{}", nonce="{}", uri="{}", algorithm=SHA-256, )"
      R"(response="{}", qop=auth, nc={}, cnonce="{}")",
      kUser, kRealm, nonce, target,
      response_of(kUser, token, nonce, kCount, client_nonce, method, target), kCount, client_nonce);
}

HttpDigest::HttpDigest(Secret token, std::string key)
    : token_(std::move(token)), key_(std::move(key)) {}

std::string HttpDigest::nonce_of(std::string_view time) const {
  return fmt::format("{}-{}", time, hex(hmac_sha256(key_, time)));
}

std::string HttpDigest::challenge(std::int64_t now, bool stale) const {
  return fmt::format(R"(Digest realm="{}", qop="auth", algorithm=SHA-256, nonce="{}"{})", kRealm,
                     nonce_of(fmt::format("{}", now)), stale ? ", stale=true" : "");
}

HttpDigest::Verdict HttpDigest::judge(std::string_view method, std::string_view target,
                                      std::string_view authorization, std::int64_t now) const {
  if (!authorization.starts_with(kScheme)) return Verdict::kNone;
  auto fields = parse_fields(authorization.substr(kScheme.size()));
  if (!fields) return Verdict::kWrong;
  const auto field = [&](const char* name) -> std::string_view { return (*fields)[name]; };
  if (field("uri") != target || field("realm") != kRealm || field("qop") != "auth")
    return Verdict::kWrong;
  const std::string_view nonce = field("nonce");
  const std::string_view time = nonce.substr(0, nonce.find('-'));
  const std::string response =
      response_of(field("username"), token_, nonce, field("nc"), field("cnonce"), method, target);
  if (!equal_in_constant_time(field("response"), response)) return Verdict::kWrong;
  // An earlier daemon at this port may have made it.
  const auto made = parse_whole_number<std::int64_t>(time);
  const bool is_ours = made && equal_in_constant_time(nonce, nonce_of(time));
  return is_ours && now - *made <= kNonceSeconds ? Verdict::kAdmitted : Verdict::kStale;
}

}  // namespace ddp::auth
