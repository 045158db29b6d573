#include "worker/transport/ucx_stream.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cstring>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "worker/transport/non_blocking.h"
#include "worker/transport/tcp_sockets.h"

namespace ddp::transport {
namespace {

constexpr std::uint32_t kGreetingMagic = 0x55504444;  // "DDPU"
constexpr std::uint32_t kMostAddressBytes = 64 << 10;
constexpr std::chrono::seconds kGreetingTime{10};
// The peer is told how many buffered bytes were consumed, at the latest after this many.
constexpr std::uint64_t kTellTaken = 256 << 10;
// How long the last bytes of a peer may take to arrive after its connection has ended.
constexpr Duration kDrainTime{200};
constexpr unsigned kBlockedPerLook = 64;  // A rank that still spins looks seldom.
constexpr Duration kPartingTime{1000};
constexpr Duration kCancelTime{5000};

// What each end sends over the connection; the address follows. Little-endian.
struct Greeting {
  std::uint32_t magic = kGreetingMagic;
  std::uint32_t link = 0;
  std::uint32_t address_bytes = 0;
};

// A descriptor that poll() always finds readable.
int always_readable() {
  static const UniqueFd fd(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  return fd.get();
}

}  // namespace

UcxStream::UcxStream(std::shared_ptr<UcxWorker> worker, Connection connection)
    : worker_(std::move(worker)),
      connection_(std::move(connection)),
      watched_(::epoll_create1(EPOLL_CLOEXEC)),
      link_(worker_->add(*this)),
      outbox_(*worker_),
      inbox_(*worker_) {
  make_non_blocking(connection_.fd());
  for (const int fd : {connection_.fd(), worker_->event_fd()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    DDP_CHECK(::epoll_ctl(watched_.get(), EPOLL_CTL_ADD, fd, &event) == 0, "errno={}", errno);
  }
  if (auto sent = greet(); !sent) fail(sent.error().message);
}

Result<void> UcxStream::greet() {
  const std::string& address = worker_->address();
  Greeting greeting;
  greeting.link = link_;
  greeting.address_bytes = static_cast<std::uint32_t>(address.size());
  std::string bytes(reinterpret_cast<const char*>(&greeting), sizeof(greeting));
  bytes += address;
  // The connection is new, so there is room for it.
  return send_all(connection_, std::as_bytes(std::span(bytes)), Clock::now() + kGreetingTime);
}

Result<void> UcxStream::read_greeting(std::string& address, std::uint32_t& link,
                                      TimePoint deadline) {
  Greeting greeting;
  auto got = receive_all(connection_, std::as_writable_bytes(std::span(&greeting, 1)), deadline);
  if (!got) return got.error();
  if (greeting.magic != kGreetingMagic || greeting.address_bytes > kMostAddressBytes)
    return make_error(Errc::kProtocol, "it did not send a UCX greeting");
  address.resize(greeting.address_bytes);
  link = greeting.link;
  return receive_all(connection_, std::as_writable_bytes(std::span(address)), deadline);
}

Result<void> UcxStream::open_endpoint(const std::string& address, std::uint32_t link) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = [](void* self, ucp_ep_h, ucs_status_t status) {
    static_cast<UcxStream*>(self)->endpoint_status_ = status;
  };
  params.err_handler.arg = this;
  const ucs_status_t status = worker_->ucx().ucp_ep_create(worker_->get(), &params, &endpoint_);
  if (status != UCS_OK) {
    endpoint_ = nullptr;
    return make_error(Errc::kIo,
                      "UCX finds no way to it: {} (UCX_TLS and UCX_NET_DEVICES choose the network)",
                      worker_->text_of(status));
  }
  outbox_.open(endpoint_, link);
  outbox_.send(UcxFrameKind::kHello);
  return {};
}

Result<void> UcxStream::establish(TimePoint deadline) {
  if (!how().empty()) return make_error(Errc::kIo, "{}", how());
  std::string address;
  std::uint32_t link = 0;
  auto opened = read_greeting(address, link, deadline);
  if (opened) opened = open_endpoint(address, link);
  if (!opened) return opened.error();
  while (!greeted_) {
    look_ = true;
    if (broken()) return make_error(Errc::kPeerLost, "{}", how());
    if (Clock::now() >= deadline) return make_error(Errc::kTimeout, "no answer over UCX in time");
    worker_->wait(Duration(20));
  }
  return {};
}

ucs_status_t UcxStream::on_frame(const UcxFrame& frame, void* data, std::size_t bytes,
                                 std::uint64_t attributes) {
  greeted_ = true;
  outbox_.on_taken(frame.taken);
  if (frame.kind != UcxFrameKind::kData && frame.kind != UcxFrameKind::kEnd) return UCS_OK;
  return inbox_.on_frame(frame, data, bytes, attributes);
}

ssize_t UcxStream::send_some(const std::byte* data, std::size_t bytes) {
  if (!how().empty()) return -1;
  worker_->progress();
  outbox_.clear_news();
  const std::size_t moved = outbox_.send_some(data, bytes);
  if (moved > 0) return static_cast<ssize_t>(moved);
  if (broken() || gone_) return fail("it closed the connection");
  wants_write_ = true;
  return 0;
}

ssize_t UcxStream::receive_some(std::byte* data, std::size_t bytes) {
  if (!how().empty()) return -1;
  worker_->progress();
  inbox_.clear_news();
  const std::size_t moved = inbox_.receive_some(data, bytes);
  tell_taken();
  if (moved > 0) return static_cast<ssize_t>(moved);
  if (inbox_.ended()) return fail("it closed the connection");
  if (broken()) return -1;
  wants_read_ = true;
  return 0;
}

void UcxStream::tell_taken() {
  const std::uint64_t taken = inbox_.taken();
  outbox_.set_taken(taken);
  if (taken - told_taken_ < kTellTaken) return;
  told_taken_ = taken;
  outbox_.send(UcxFrameKind::kCredit);
}

// When nothing moves: whether the stream has failed. Sets how().
bool UcxStream::broken() {
  ucs_status_t status = inbox_.status();
  if (status == UCS_OK) status = outbox_.status();
  if (status == UCS_OK) status = endpoint_status_;
  if (look_ || status != UCS_OK || ++blocked_ % kBlockedPerLook == 0) look_at_connection();
  if (gone_ && (status != UCS_OK || Clock::now() - gone_since_ > kDrainTime))
    fail("it closed the connection");
  if (status != UCS_OK) fail(fmt::format("UCX: {}", worker_->text_of(status)));
  return !how().empty();
}

void UcxStream::look_at_connection() {
  look_ = false;
  std::byte byte{};
  const ssize_t got = ::recv(connection_.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (gone_ || got > 0 || (got < 0 && would_block(errno))) return;
  gone_ = true;
  gone_since_ = Clock::now();
  // An ended connection would keep the set readable.
  (void)::epoll_ctl(watched_.get(), EPOLL_CTL_DEL, connection_.fd(), nullptr);
}

int UcxStream::watch(pollfd* entries, bool something_to_do) {
  const bool ready = something_to_do || !worker_->arm();
  entries[0] = pollfd{ready ? always_readable() : watched_.get(), POLLIN, 0};
  return 1;
}

int UcxStream::poll_entries(pollfd* entries) {
  worker_->progress();
  outbox_.tidy();
  look_ = true;
  if (!wants_data() || !how().empty()) return 0;
  return watch(entries, (wants_read_ && inbox_.news()) || (wants_write_ && outbox_.news()));
}

int UcxStream::idle_poll_entries(pollfd* entries) {
  if (endpoint_ == nullptr || !how().empty()) return 0;
  worker_->progress();
  outbox_.tidy();
  if (look_) look_at_connection();
  look_ = true;
  return watch(entries, false);
}

void UcxStream::close() {
  if (endpoint_ != nullptr) end_endpoint();
  fail("it is closed");
  (void)::shutdown(connection_.fd(), SHUT_RDWR);
}

UcxStream::~UcxStream() {
  if (endpoint_ != nullptr) {
    look_ = true;
    if (!broken() && !gone_) {
      outbox_.send(UcxFrameKind::kEnd);
      flush(Clock::now() + kPartingTime);
    }
    end_endpoint();
  }
  worker_->remove(link_);
}

bool UcxStream::finished(ucs_status_ptr_t request) const {
  return !UCS_PTR_IS_PTR(request) ||
         worker_->ucx().ucp_request_check_status(request) != UCS_INPROGRESS;
}

// Waits until everything sent has reached the peer's machine, or the peer is gone.
void UcxStream::flush(TimePoint limit) {
  ucp_request_param_t param{};
  const ucs_status_ptr_t request = worker_->ucx().ucp_ep_flush_nbx(endpoint_, &param);
  while (!finished(request) && !gone_ && Clock::now() < limit) {
    worker_->wait(Duration(1));
    look_at_connection();
  }
  if (UCS_PTR_IS_PTR(request)) worker_->ucx().ucp_request_free(request);
}

// Cancels requests in progress and waits until they have ended. An orderly close would wait for a
// peer that may be gone.
void UcxStream::end_endpoint() {
  const UcxLibrary& ucx = worker_->ucx();
  inbox_.release();
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucx.ucp_ep_close_nbx(endpoint_, &param);
  endpoint_ = nullptr;
  const TimePoint end = Clock::now() + kCancelTime;
  const auto idle = [this] { return !outbox_.busy() && !inbox_.busy(); };
  while ((!finished(request) || !idle()) && Clock::now() < end) {
    worker_->wait(Duration(1));
    outbox_.tidy();
  }
  // The owner is about to free the memory.
  DDP_CHECK(idle(), "UCX still uses memory of a link that it was told to close");
  if (UCS_PTR_IS_PTR(request)) ucx.ucp_request_free(request);
}

}  // namespace ddp::transport
