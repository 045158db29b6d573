#include "agent/process/link_key.h"

#include <string>

#include "common/auth/hmac.h"

namespace ddp::agent {

wire::LinkKey link_key(const config::JobSpec& spec, std::string_view nonce) {
  if (nonce.empty()) return {};
  // Of use for nothing else, because the text is in no other proof.
  std::string purpose = "ddp-run links 1";
  purpose += '\0';
  purpose += nonce;
  return {spec.tls.any() ? wire::LinkProtection::kEncrypted : wire::LinkProtection::kProven,
          auth::hmac_sha256(spec.rdzv_token.reveal(), purpose)};
}

}  // namespace ddp::agent
