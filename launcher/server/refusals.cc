#include "launcher/server/refusals.h"

#include <fmt/format.h>

#include "common/log/log.h"

namespace ddp::server {
namespace {

struct Words {
  std::string_view label;
  std::string_view reason;
};

constexpr std::array<Words, kRefusalCount> kWords{{
    {"no_token", "an agent without a token"},
    {"wrong_token", "it does not know this job's token"},
    {"other_job", "an agent that asked to join another job than the one it had proved itself for"},
    {"unwanted_token", "it has a token and this rendezvous has none"},
    {"stranger", "a store client from another machine that came without an agent"},
    {"malformed", "it did not finish proving that it knows the token"},
    {"no_tls", "an agent without TLS"},
    {"tls", "the TLS handshake failed"},
    {"unwanted_tls", "it uses TLS and this rendezvous does not"},
    {"other_user", "it belongs to another user of this machine"},
    {"unknown_user",
     "it comes from this machine, but the system does not know from which user, because an address "
     "was translated on the way; --any-user lets it in"},
    {"unknown_version", "it speaks an unknown version of the protocol"},
}};

const Words& words_of(RefusalReason why) { return kWords[static_cast<std::size_t>(why)]; }

}  // namespace

std::string_view label_of(RefusalReason why) { return words_of(why).label; }

void Refusals::note(RefusalReason why, const std::string& remote, std::string_view details) {
  count(why);
  if (const auto left_out = log_limit_.admit(Clock::now())) {
    log::warning("refused {}: {}{}", remote, details.empty() ? words_of(why).reason : details,
                 *left_out == 0 ? "" : fmt::format(" ({} more since the last line)", *left_out));
  }
}

}  // namespace ddp::server
