#include "common/store/tcp_client.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>

#include "common/base/host_port.h"
#include "common/wait/deadline.h"
#include "common/wait/wait_interrupt.h"

namespace ddp::store {
namespace {

constexpr std::chrono::milliseconds kLongestPause{1'000};
// However short the deadline of an operation, one attempt to reconnect may take this long.
constexpr std::chrono::milliseconds kLeastConnect{1'000};
// A longer answer is taken for a protocol error.
constexpr std::int64_t kMaxAnswerBytes = 1LL << 30;
// The time for the answer to CANCEL_WAIT, which the server gives at once or not at all.
constexpr std::chrono::milliseconds kCancelLimit{10'000};

}  // namespace

Backoff::Backoff()
    : random_(static_cast<unsigned>(::getpid()) ^
              static_cast<unsigned>(Clock::now().time_since_epoch().count())) {}

bool Backoff::pause(TimePoint deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  if (left.count() <= 0) return false;
  std::uniform_int_distribution<long> jitter(next_.count() / 2, next_.count());
  ::poll(nullptr, 0, static_cast<int>(std::min(jitter(random_), left.count())));
  next_ = std::min(2 * next_, kLongestPause);
  return Clock::now() < deadline;
}

TcpClient::TcpClient(GreetedSocket greeted, std::string host, int port,
                     const TcpStoreOptions& options)
    : host_(std::move(host)),
      port_(port),
      where_("store " + host_and_port(host_, port)),
      options_(options),
      kind_(greeted.kind),
      socket_(std::move(greeted.socket)) {}

TimePoint TcpClient::answer_deadline() const { return deadline_after(options_.timeout); }

void TcpClient::drop() {
  if (!socket_) return;
  socket_.reset();
  tried_since_.reset();
}

Result<void> TcpClient::reconnect(TimePoint deadline) {
  if (broken_) return *broken_;
  if (socket_) return {};
  // The time between two calls does not count: nobody has tried in it.
  if (!tried_since_) tried_since_ = Clock::now();
  const TimePoint last = *tried_since_ + options_.retry;
  Backoff backoff;
  while (true) {
    const TimePoint limit = std::max(std::min(last, deadline), Clock::now() + kLeastConnect);
    Result<GreetedSocket> greeted = connect_and_greet(host_, port_, kind_, {}, limit);
    if (greeted) {
      socket_ = std::move(greeted->socket);
      return {};
    }
    if (is_final(greeted.error())) return fail(greeted.error());
    if (backoff.pause(std::min(last, deadline))) continue;
    if (deadline < last) {
      return make_error(Errc::kPeerLost, "{}: the connection is lost: {}", where_,
                        greeted.error().message);
    }
    return fail(make_error(Errc::kPeerLost, "lost, and not restored within {} ms: {}",
                           options_.retry.count(), greeted.error().message));
  }
}

Error TcpClient::fail(const Error& cause) {
  if (!broken_) {
    broken_ = make_error(Errc::kPeerLost, "{}: {}", where_, cause.message);
    socket_.reset();
  }
  return *broken_;
}

Error TcpClient::give_up(Op op, int tries, const Error& cause) const {
  return make_error(Errc::kPeerLost, "{}: the connection was lost at {} {} times: {}", where_,
                    wire::c10d::op_name(op), tries, cause.message);
}

Error TcpClient::in_doubt(Op op, const Error& cause) const {
  const std::string key = wire_keys_.empty() ? std::string() : wire_keys_[0].substr(1);
  return make_error(
      Errc::kPeerLost,
      "{}: the connection was lost at {} of '{}', which may or may not have been "
      "done: {}{}",
      where_, wire::c10d::op_name(op), key, cause.message,
      op == Op::kAdd ? " (a server also closes if the key's value is not a number)" : "");
}

Result<std::string> TcpClient::read(std::size_t count) {
  return socket_->read_exactly(count, answer_deadline());
}

Result<std::int64_t> TcpClient::read_number() {
  Result<std::string> bytes = read(8);
  if (!bytes) return bytes.error();
  return wire::c10d::get_i64(bytes->data());
}

Result<std::string> TcpClient::read_string() {
  Result<std::int64_t> length = read_number();
  if (!length) return length.error();
  if (*length < 0 || *length > kMaxAnswerBytes) {
    return make_error(Errc::kProtocol, "an answer of {} bytes", *length);
  }
  return read(static_cast<std::size_t>(*length));
}

Result<std::vector<std::string>> TcpClient::read_strings(std::size_t count) {
  std::vector<std::string> strings;
  while (strings.size() < count) {
    Result<std::string> string = read_string();
    if (!string) return string.error();
    strings.push_back(*std::move(string));
  }
  return strings;
}

Result<void> TcpClient::read_confirmation() {
  Result<std::string> answer = read(1);
  if (!answer) return answer.error();
  if ((*answer)[0] == wire::c10d::kReady) return {};
  return make_error(Errc::kProtocol, "answer {} to CHECK of nothing", int{(*answer)[0]});
}

Result<bool> TcpClient::read_wait(TimePoint deadline) {
  const TimePoint since = Clock::now();
  Result<bool> readable = false;
  for (given_up_ = false; !given_up_; given_up_ = WaitInterrupt::raised()) {
    readable = socket_->can_read(WaitInterrupt::next_look(since, deadline));
    if (!readable) return readable;
    if (*readable || Clock::now() >= deadline) break;
  }
  if (!*readable) return cancel_wait();
  Result<std::string> answer = read(1);
  if (!answer) return answer.error();
  if ((*answer)[0] == wire::c10d::kStopWaiting) return true;
  return make_error(Errc::kProtocol, "answer {} to WAIT", int{(*answer)[0]});
}

// The deadline has passed, so a connection that is lost here does not matter: it is restored when
// it is needed.
Result<bool> TcpClient::cancel_wait() {
  if (!dialect_has(Op::kCancelWait)) {
    // The server would answer the wait later, when nobody expects it.
    drop();
    return false;
  }
  Request request;
  request.op = Op::kCancelWait;
  std::string bytes;
  wire::c10d::encode_request(request, kind_.dialect, bytes);
  const TimePoint limit = deadline_after(kCancelLimit);
  if (!socket_->write_all(bytes, limit)) {
    drop();
    return false;
  }
  Result<std::string> answer = socket_->read_exactly(1, limit);
  if (answer && (*answer)[0] == wire::c10d::kWaitCanceled) return false;
  // The keys came just before the cancellation. The answer to CANCEL_WAIT itself follows.
  if (answer) answer = socket_->read_exactly(1, limit);
  if (answer) return true;
  drop();
  return false;
}

}  // namespace ddp::store
