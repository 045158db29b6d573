#include "worker/transport/link.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

#include "common/base/clock.h"
#include "common/base/errc.h"
#include "worker/transport/non_blocking.h"
#include "worker/transport/socket_stream.h"

namespace ddp {
namespace {

constexpr std::uint32_t kAbortMagic = 0x54524241;  // "ABRT"
// How long an explanation may lag behind the end of the data connection before the peer counts as
// dead.
constexpr Duration kExplanationTime{100};

// All members little-endian, as every machine that LibTorch runs on is.
struct AbortFrame {
  std::uint32_t magic = kAbortMagic;
  std::int32_t code = 0;
  std::int32_t suspect = -1;
  char text[500] = {};
};
static_assert(sizeof(AbortFrame) == 512);

}  // namespace

Link::Link(std::unique_ptr<DataStream> data, UniqueFd control, Rank peer, int peer_node)
    : data_(std::move(data)), control_(std::move(control)), peer_(peer), peer_node_(peer_node) {
  make_non_blocking(control_.get());
  control_bytes_.reserve(sizeof(AbortFrame));
}

Link::Link(UniqueFd data, UniqueFd control, Rank peer, int peer_node)
    : Link(std::make_unique<SocketStream>(std::move(data)), std::move(control), peer, peer_node) {}

// A peer that ends its streams on purpose says why, but its word may come a little later.
void Link::explain_end() {
  const TimePoint limit = Clock::now() + kExplanationTime;
  Outcome told = peer_abort();
  while (!told && !control_ended_ && Clock::now() < limit) {
    pollfd entry{control_.get(), POLLIN, 0};
    ::poll(&entry, 1, 10);
    told = peer_abort();
  }
  failure_ =
      told
          ? *told
          : Failure{Errc::kPeerLost, peer_,
                    fmt::format("rank {} on node {} is gone: {}", peer_, peer_node_, data_->how())};
}

void Link::read_control() {
  char buffer[sizeof(AbortFrame)];
  while (!control_ended_ && control_bytes_.size() < sizeof(AbortFrame)) {
    const ssize_t received =
        ::recv(control_.get(), buffer, sizeof(AbortFrame) - control_bytes_.size(), MSG_DONTWAIT);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && would_block(errno)) return;
    if (received <= 0) {
      control_ended_ = true;
      return;
    }
    control_bytes_.append(buffer, static_cast<std::size_t>(received));
  }
}

Outcome Link::peer_abort() {
  if (closed_) return failure_;
  read_control();
  if (control_bytes_.size() < sizeof(AbortFrame)) return {};
  AbortFrame frame;
  std::memcpy(&frame, control_bytes_.data(), sizeof(frame));
  if (frame.magic != kAbortMagic) {
    return Failure{
        Errc::kProtocol, peer_,
        fmt::format("rank {} on node {} sent bytes that are no abort frame", peer_, peer_node_)};
  }
  const auto code = frame.code == 0 ? Errc::kAborted : static_cast<Errc>(frame.code);
  return Failure{code, frame.suspect,
                 std::string(frame.text, ::strnlen(frame.text, sizeof(frame.text))), true};
}

void Link::close(const Failure& cause) {
  if (closed_) return;
  closed_ = true;
  AbortFrame frame;
  frame.code =
      cause.code.category() == make_error_code(Errc::kAborted).category() ? cause.code.value() : 0;
  frame.suspect = cause.suspect;
  std::memcpy(frame.text, cause.text.data(), std::min(cause.text.size(), sizeof(frame.text) - 1));
  // An empty socket buffer takes 512 bytes at once; if the peer is gone there is nobody to tell.
  (void)::send(control_.get(), &frame, sizeof(frame), MSG_NOSIGNAL | MSG_DONTWAIT);
  (void)::shutdown(control_.get(), SHUT_WR);
  data_->close();
  if (!failure_) failure_ = cause;
}

int Link::poll_entries(pollfd* entries) const {
  const int count = idle_poll_entries(entries);
  return closed_ ? count : count + data_->poll_entries(entries + count);
}

int Link::idle_poll_entries(pollfd* entries) const {
  if (closed_ || control_ended_) return 0;
  entries[0] = pollfd{control_.get(), POLLIN, 0};
  return 1;
}

}  // namespace ddp
