#include "worker/transport/link.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/errc.h"

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

void make_non_blocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  DDP_CHECK(flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0, "fd={} errno={}", fd,
            errno);
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Link::Link(UniqueFd data, UniqueFd control, Rank peer, int peer_node)
    : data_(std::move(data)), control_(std::move(control)), peer_(peer), peer_node_(peer_node) {
  make_non_blocking(data_.get());
  make_non_blocking(control_.get());
  control_bytes_.reserve(sizeof(AbortFrame));
}

ssize_t Link::send_some(const std::byte* data, std::size_t bytes) {
  if (failure_) return -1;
  const ssize_t sent = ::send(data_.get(), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) return sent;
  if (!would_block()) return fail(std::generic_category().message(errno));
  wants_write_ = true;
  return 0;
}

ssize_t Link::receive_some(std::byte* data, std::size_t bytes) {
  if (failure_) return -1;
  const ssize_t received = ::recv(data_.get(), data, bytes, MSG_DONTWAIT);
  if (received > 0) return received;
  if (received == 0) return fail("it closed the connection");
  if (!would_block()) return fail(std::generic_category().message(errno));
  wants_read_ = true;
  return 0;
}

ssize_t Link::fail(const std::string& how) {
  const TimePoint limit = Clock::now() + kExplanationTime;
  Outcome told = peer_abort();
  while (!told && !control_ended_ && Clock::now() < limit) {
    pollfd entry{control_.get(), POLLIN, 0};
    ::poll(&entry, 1, 10);
    told = peer_abort();
  }
  failure_ = told ? *told
                  : Failure{Errc::kPeerLost, peer_,
                            fmt::format("rank {} on node {} is gone: {}", peer_, peer_node_, how)};
  return -1;
}

void Link::read_control() {
  char buffer[sizeof(AbortFrame)];
  while (!control_ended_ && control_bytes_.size() < sizeof(AbortFrame)) {
    const ssize_t received =
        ::recv(control_.get(), buffer, sizeof(AbortFrame) - control_bytes_.size(), MSG_DONTWAIT);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && would_block()) return;
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
  (void)::shutdown(data_.get(), SHUT_RDWR);
  if (!failure_) failure_ = cause;
}

int Link::poll_entries(pollfd* entries) const {
  int count = idle_poll_entries(entries);
  if (closed_ || !wants_data()) return count;
  const int events = (wants_read_ ? POLLIN : 0) | (wants_write_ ? POLLOUT : 0);
  entries[count++] = pollfd{data_.get(), static_cast<short>(events), 0};
  return count;
}

int Link::idle_poll_entries(pollfd* entries) const {
  if (closed_ || control_ended_) return 0;
  entries[0] = pollfd{control_.get(), POLLIN, 0};
  return 1;
}

}  // namespace ddp
