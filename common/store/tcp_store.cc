#include "common/store/tcp_store.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <utility>

#include "common/base/clock.h"
#include "common/store/deadline.h"
#include "common/store/socket.h"
#include "common/wire/c10d.h"

namespace ddp {
namespace {

using wire::c10d::Op;
using wire::c10d::Request;

// What PyTorch's own server accepts; it closes the connection beyond.
constexpr std::size_t kMaxKeyBytes = 8u << 10;
constexpr std::size_t kMaxValueBytes = 8u << 20;
constexpr std::size_t kMaxKeys = 131'072;
// An answer longer than this is not one.
constexpr std::int64_t kMaxAnswerBytes = 1LL << 30;

constexpr std::chrono::milliseconds kFirstBackoff{10};
constexpr std::chrono::milliseconds kLastBackoff{1'000};
// For the answer to CANCEL_WAIT, which the server gives at once or not at all.
constexpr std::chrono::milliseconds kCancelLimit{10'000};
constexpr std::size_t kMaxNamedKeys = 16;

class TcpStoreClient final : public Store {
 public:
  TcpStoreClient(Socket socket, std::string where, Timeout answer_limit)
      : socket_(std::move(socket)), where_(std::move(where)), answer_limit_(answer_limit) {}

  Result<void> set(std::string_view key, std::string_view value) override;
  Result<std::string> get(std::string_view key, Timeout timeout) override;
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override;
  Result<bool> check(const std::vector<std::string>& keys) override;
  Result<void> wait(const std::vector<std::string>& keys, Timeout timeout) override;
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) override;
  Result<bool> delete_key(std::string_view key) override;
  Result<std::int64_t> num_keys() override;

  // The first exchange, which also shows whether the peer is such a server.
  Result<void> greet(bool with_ping, TimePoint deadline);

 private:
  // A request with wire keys, which stay here as long as the request is used.
  Request with_key(Op op, std::string_view key);
  Request with_keys(Op op, const std::vector<std::string>& keys);
  // Sends the request; `answer_bytes` of the answer's beginning come back.
  Result<std::string> call(const Request& request, std::size_t answer_bytes);
  Result<std::string> read(std::size_t count);
  Result<std::int64_t> call_number(const Request& request);
  Result<std::string> call_string(const Request& request);
  Result<void> send(const Request& request);
  // Takes the wait back; success if it was fulfilled in the meantime.
  Result<void> cancel_wait(const std::vector<std::string>& keys, Timeout timeout);
  Error missing_keys(const std::vector<std::string>& keys, Timeout timeout);
  Error fail(const Error& cause);

  Socket socket_;
  std::string where_;
  Timeout answer_limit_;
  std::vector<std::string> wire_keys_;
  std::string out_;
  std::optional<Error> broken_;  // The first failure; the stream is of no further use.
};

Error TcpStoreClient::fail(const Error& cause) {
  if (!broken_) {
    broken_ = make_error(Errc::kPeerLost, "store {}: {}", where_, cause.message);
  }
  return *broken_;
}

Request TcpStoreClient::with_key(Op op, std::string_view key) {
  wire_keys_.assign(1, "/");
  wire_keys_[0] += key;
  Request request;
  request.op = op;
  request.key = wire_keys_[0];
  return request;
}

Request TcpStoreClient::with_keys(Op op, const std::vector<std::string>& keys) {
  Request request;
  request.op = op;
  wire_keys_.clear();
  for (const std::string& key : keys) wire_keys_.push_back("/" + key);
  request.keys.assign(wire_keys_.begin(), wire_keys_.end());
  return request;
}

Result<void> TcpStoreClient::send(const Request& request) {
  if (broken_) return *broken_;
  for (const std::string& key : wire_keys_) {
    if (key.size() > kMaxKeyBytes) {
      return make_error(Errc::kInvalidArgument, "store key of {} bytes, the limit is {}",
                        key.size() - 1, kMaxKeyBytes - 1);
    }
  }
  if (std::max(request.value.size(), request.expected.size()) > kMaxValueBytes) {
    return make_error(Errc::kInvalidArgument,
                      "value of {} bytes for store key '{}', the limit is {}",
                      std::max(request.value.size(), request.expected.size()),
                      request.key.substr(1), kMaxValueBytes);
  }
  if (request.keys.size() > kMaxKeys) {
    return make_error(Errc::kInvalidArgument, "{} store keys in one call, the limit is {}",
                      request.keys.size(), kMaxKeys);
  }
  out_.clear();
  wire::c10d::encode_request(request, wire::c10d::Dialect::kNewest, out_);
  Result<void> written = socket_.write_all(out_, deadline_after(answer_limit_));
  if (!written) return fail(written.error());
  return {};
}

Result<std::string> TcpStoreClient::read(std::size_t count) {
  Result<std::string> bytes = socket_.read_exactly(count, deadline_after(answer_limit_));
  if (!bytes) return fail(bytes.error());
  return bytes;
}

Result<std::string> TcpStoreClient::call(const Request& request, std::size_t answer_bytes) {
  Result<void> sent = send(request);
  if (!sent) return sent.error();
  return read(answer_bytes);
}

Result<std::int64_t> TcpStoreClient::call_number(const Request& request) {
  Result<std::string> bytes = call(request, 8);
  if (!bytes) return bytes.error();
  return wire::c10d::get_i64(bytes->data());
}

Result<std::string> TcpStoreClient::call_string(const Request& request) {
  Result<std::int64_t> length = call_number(request);
  if (!length) return length.error();
  if (*length < 0 || *length > kMaxAnswerBytes) {
    return fail(make_error(Errc::kProtocol, "answer of {} bytes to {}", *length,
                           wire::c10d::op_name(request.op)));
  }
  return read(static_cast<std::size_t>(*length));
}

Result<void> TcpStoreClient::greet(bool with_ping, TimePoint deadline) {
  Request request;
  request.op = Op::kValidate;
  request.number = wire::c10d::kValidateMagic;
  // One write: a PyTorch server judges by the first piece that arrives.
  out_.clear();
  wire::c10d::encode_request(request, wire::c10d::Dialect::kNewest, out_);
  request.op = with_ping ? Op::kPing : Op::kNumKeys;
  request.number = ::getpid();
  const std::size_t nonce_at = out_.size() + 1;
  wire::c10d::encode_request(request, wire::c10d::Dialect::kNewest, out_);
  Result<void> written = socket_.write_all(out_, deadline);
  if (!written) return written;
  Result<std::string> answer = socket_.read_exactly(with_ping ? 4 : 8, deadline);
  if (!answer) return answer.error();
  const bool right =
      with_ping ? *answer == out_.substr(nonce_at) : wire::c10d::get_i64(answer->data()) >= 0;
  if (!right) return make_error(Errc::kProtocol, "the answer is not that of a TCP store");
  return {};
}

Result<void> TcpStoreClient::set(std::string_view key, std::string_view value) {
  Request request = with_key(Op::kSet, key);
  request.value = value;
  return send(request);
}

Result<std::string> TcpStoreClient::get(std::string_view key, Timeout timeout) {
  Result<void> there = wait({std::string(key)}, timeout);
  if (!there) return there.error();
  return call_string(with_key(Op::kGet, key));
}

Result<std::int64_t> TcpStoreClient::add(std::string_view key, std::int64_t delta) {
  Request request = with_key(Op::kAdd, key);
  request.number = delta;
  return call_number(request);
}

Result<bool> TcpStoreClient::check(const std::vector<std::string>& keys) {
  Result<std::string> answer = call(with_keys(Op::kCheck, keys), 1);
  if (!answer) return answer.error();
  return (*answer)[0] == wire::c10d::kReady;
}

Result<std::string> TcpStoreClient::compare_set(std::string_view key, std::string_view expected,
                                                std::string_view desired) {
  Request request = with_key(Op::kCompareSet, key);
  request.expected = expected;
  request.value = desired;
  return call_string(request);
}

Result<bool> TcpStoreClient::delete_key(std::string_view key) {
  Result<std::int64_t> count = call_number(with_key(Op::kDeleteKey, key));
  if (!count) return count.error();
  return *count > 0;
}

Result<std::int64_t> TcpStoreClient::num_keys() {
  wire_keys_.clear();
  Request request;
  request.op = Op::kNumKeys;
  return call_number(request);
}

Result<void> TcpStoreClient::wait(const std::vector<std::string>& keys, Timeout timeout) {
  const TimePoint deadline = deadline_after(timeout);
  Result<void> sent = send(with_keys(Op::kWait, keys));
  if (!sent) return sent;
  Result<bool> answered = socket_.can_read(deadline);
  if (!answered) return fail(answered.error());
  if (!*answered) return cancel_wait(keys, timeout);
  Result<std::string> answer = read(1);
  if (!answer) return answer.error();
  if ((*answer)[0] != wire::c10d::kStopWaiting) {
    return fail(make_error(Errc::kProtocol, "answer {} to WAIT", int{(*answer)[0]}));
  }
  return {};
}

Result<void> TcpStoreClient::cancel_wait(const std::vector<std::string>& keys, Timeout timeout) {
  wire_keys_.clear();
  Request request;
  request.op = Op::kCancelWait;
  Result<void> sent = send(request);
  if (!sent) return sent;
  Result<std::string> answer = socket_.read_exactly(1, deadline_after(kCancelLimit));
  if (!answer) return fail(answer.error());
  if ((*answer)[0] == wire::c10d::kWaitCanceled) return missing_keys(keys, timeout);
  // The keys came just before the cancellation did; its own answer follows.
  answer = socket_.read_exactly(1, deadline_after(kCancelLimit));
  if (!answer) return fail(answer.error());
  return {};
}

Error TcpStoreClient::missing_keys(const std::vector<std::string>& keys, Timeout timeout) {
  std::string names;
  const std::size_t named = std::min(keys.size(), kMaxNamedKeys);
  for (std::size_t i = 0; i < named; ++i) {
    const Result<bool> there = check({keys[i]});
    if (!there) return there.error();
    if (!*there) names += (names.empty() ? "'" : ", '") + keys[i] + "'";
  }
  if (names.empty() && keys.size() == named) names = "(all came just after)";
  if (keys.size() > named) names += fmt::format(" or among {} more keys", keys.size() - named);
  return make_error(Errc::kTimeout, "store {}: not there after {} ms: {}", where_, timeout.count(),
                    names);
}

Result<std::unique_ptr<Store>> connect_once(const std::string& host, int port, bool with_ping,
                                            TimePoint deadline, Store::Timeout timeout) {
  Result<Socket> socket = Socket::connect(host, port, deadline);
  if (!socket) return socket.error();
  const std::string where = host_and_port(host, port);
  auto client = std::make_unique<TcpStoreClient>(std::move(*socket), where, timeout);
  Result<void> greeted = client->greet(with_ping, deadline);
  if (!greeted) {
    return make_error(greeted.error().code, "{}: {}", where, greeted.error().message);
  }
  return std::unique_ptr<Store>(std::move(client));
}

}  // namespace

Result<std::unique_ptr<Store>> TcpStore::connect(const std::string& host, int port,
                                                 Store::Timeout timeout) {
  const TimePoint deadline = deadline_after(timeout);
  std::minstd_rand random(static_cast<unsigned>(::getpid()));
  std::chrono::milliseconds backoff = kFirstBackoff;
  // Servers of PyTorch 2.2 to 2.4 close at PING, so a lost connection tries the other greeting.
  bool with_ping = true;
  while (true) {
    auto client = connect_once(host, port, with_ping, deadline, timeout);
    if (client || client.error().code == Errc::kProtocol) return client;
    const auto left = deadline - Clock::now();
    if (left <= backoff) {
      return make_error(Errc::kTimeout, "no TCP store within {} ms: {}", timeout.count(),
                        client.error().message);
    }
    with_ping = !with_ping;
    // Jitter, because thousands of clients start at the same moment.
    std::uniform_int_distribution<long> jitter(backoff.count() / 2, backoff.count());
    ::poll(nullptr, 0, static_cast<int>(jitter(random)));
    backoff = std::min(2 * backoff, kLastBackoff);
  }
}

}  // namespace ddp
