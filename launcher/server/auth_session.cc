#include "launcher/server/auth_session.h"

#include <utility>

namespace ddp::server {
namespace {

// A real client needs only one or two round trips.
constexpr Duration kHandshakeLimit{10'000};

}  // namespace

AuthSession::AuthSession(std::shared_ptr<net::ByteStream> stream, const Secret& token,
                         Events events)
    : stream_(std::move(stream)),
      handshake_(token, auth::random_nonce()),
      events_(std::move(events)),
      limit_(stream_->io()) {
  limit_.after(kHandshakeLimit, [this] { refuse(RefusalReason::kMalformed); });
}

void AuthSession::on_bytes(std::string_view bytes) {
  using Outcome = auth::ServerHandshake::Outcome;
  stream_->send(handshake_.receive(bytes));
  switch (handshake_.outcome()) {
    case Outcome::kPending:
      return;
    case Outcome::kAdmitted:
      limit_.cancel();
      return events_.admitted(handshake_.job_id(), handshake_.rest());
    case Outcome::kNoToken:
      return refuse(RefusalReason::kUnwanted);
    case Outcome::kWrongToken:
      return refuse(RefusalReason::kWrongToken);
    case Outcome::kMalformed:
      return refuse(RefusalReason::kMalformed);
  }
}

void AuthSession::refuse(RefusalReason why) {
  limit_.cancel();
  stream_->close_after_writes();
  events_.refused(why);
}

void AuthSession::on_closed(const Error& /*why*/) {
  limit_.cancel();
  events_.ended();
}

}  // namespace ddp::server
