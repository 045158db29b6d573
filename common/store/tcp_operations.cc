#include <unistd.h>

#include <algorithm>

#include "common/store/deadline.h"
#include "common/store/store_errors.h"
#include "common/store/tcp_client.h"

namespace ddp {
namespace {

using wire::c10d::Dialect;

// The limits of PyTorch's own server, which closes the connection beyond them.
constexpr std::size_t kMaxKeyBytes = 8u << 10;
constexpr std::size_t kMaxValueBytes = 8u << 20;
constexpr std::size_t kMaxKeys = 131'072;

// A request that reads or writes several values is split after this many keys or bytes.
constexpr std::size_t kKeysAtOnce = 1'024;
constexpr std::size_t kBytesAtOnce = 1u << 20;
// GETs sent one after the other must fit into the socket's buffers: a server that reads one request
// at a time takes the next only after its answer was sent.
constexpr std::size_t kGetBytesAtOnce = 16u << 10;

constexpr std::size_t kMaxNamedKeys = 16;
// A push wakes one waiter, which may die before it pops. So the other waiters look again this
// often.
constexpr std::chrono::seconds kLookIntoQueue{5};

constexpr const char* kBarrierOpen = "/open";

const char* speaks(Dialect dialect) {
  switch (dialect) {
    case Dialect::kLegacy:
      return "a server of PyTorch 1.9 to 2.0";
    case Dialect::kInterim:
      return "a server of PyTorch 2.1";
    default:
      return "an older server of PyTorch, or one without libuv";
  }
}

}  // namespace

Result<void> TcpClient::check_limits(const Request& request) const {
  for (const std::string& key : wire_keys_) {
    if (key.size() > kMaxKeyBytes) {
      return make_error(Errc::kInvalidArgument, "store key of {} bytes, the limit is {}",
                        key.size() - 1, kMaxKeyBytes - 1);
    }
  }
  std::size_t largest = std::max(request.value.size(), request.expected.size());
  for (const std::string_view value : request.values) largest = std::max(largest, value.size());
  if (largest > kMaxValueBytes) {
    return make_error(Errc::kInvalidArgument,
                      "value of {} bytes for store key '{}', the limit is {}", largest,
                      wire_keys_[0].substr(1), kMaxValueBytes);
  }
  if (request.keys.size() > kMaxKeys) {
    return make_error(Errc::kInvalidArgument, "{} store keys in one call, the limit is {}",
                      request.keys.size(), kMaxKeys);
  }
  return {};
}

Result<void> TcpClient::put(Op op, std::string_view key, std::string_view value,
                            std::string_view expected, std::int64_t number) {
  wire_keys_.resize(1);
  wire_keys_[0].assign(1, '/').append(key);
  Request request;
  request.op = op;
  request.key = wire_keys_[0];
  request.value = value;
  request.expected = expected;
  request.number = number;
  if (op == Op::kWait) request.keys.push_back(request.key);
  if (Result<void> right = check_limits(request); !right) return right;
  wire::c10d::encode_request(request, kind_.dialect, out_);
  return {};
}

Result<void> TcpClient::put(Op op, const std::vector<std::string>& keys) {
  wire_keys_.clear();
  for (const std::string& key : keys) wire_keys_.push_back("/" + key);
  Request request;
  request.op = op;
  request.keys.assign(wire_keys_.begin(), wire_keys_.end());
  if (Result<void> right = check_limits(request); !right) return right;
  wire::c10d::encode_request(request, kind_.dialect, out_);
  return {};
}

void TcpClient::put(Op op) {
  Request request;
  request.op = op;
  wire::c10d::encode_request(request, kind_.dialect, out_);
}

Result<void> TcpClient::set(std::string_view key, std::string_view value) {
  out_.clear();
  if (Result<void> right = put(Op::kSet, key, value); !right) return right;
  put(kConfirmation);
  return exchange(Op::kSet, Repeat::kFreely, kNoDeadline, [&] { return read_confirmation(); });
}

Result<void> TcpClient::append(std::string_view key, std::string_view value) {
  if (Result<void> there = require(Op::kAppend); !there) return there;
  out_.clear();
  if (Result<void> right = put(Op::kAppend, key, value); !right) return right;
  put(kConfirmation);
  return exchange(Op::kAppend, Repeat::kIfNotSent, kNoDeadline,
                  [&] { return read_confirmation(); });
}

Result<std::int64_t> TcpClient::add(std::string_view key, std::int64_t delta) {
  out_.clear();
  if (Result<void> right = put(Op::kAdd, key, {}, {}, delta); !right) return right.error();
  return exchange(Op::kAdd, Repeat::kIfNotSent, kNoDeadline, [&] { return read_number(); });
}

Result<bool> TcpClient::check(const std::vector<std::string>& keys) {
  out_.clear();
  if (Result<void> right = put(Op::kCheck, keys); !right) return right.error();
  const Result<std::string> answer =
      exchange(Op::kCheck, Repeat::kFreely, kNoDeadline, [&] { return read(1); });
  if (!answer) return answer.error();
  return (*answer)[0] == wire::c10d::kReady;
}

Result<std::string> TcpClient::compare_set(std::string_view key, std::string_view expected,
                                           std::string_view desired) {
  out_.clear();
  if (auto right = put(Op::kCompareSet, key, desired, expected); !right) return right.error();
  return exchange(Op::kCompareSet, Repeat::kIfNotSent, kNoDeadline, [&] { return read_string(); });
}

Result<bool> TcpClient::delete_key(std::string_view key) {
  out_.clear();
  if (Result<void> right = put(Op::kDeleteKey, key); !right) return right.error();
  const Result<std::int64_t> count =
      exchange(Op::kDeleteKey, Repeat::kIfNotSent, kNoDeadline, [&] { return read_number(); });
  if (!count) return count.error();
  return *count > 0;
}

Result<std::int64_t> TcpClient::num_keys() {
  out_.clear();
  put(Op::kNumKeys);
  return exchange(Op::kNumKeys, Repeat::kFreely, kNoDeadline, [&] { return read_number(); });
}

Result<std::vector<std::string>> TcpClient::list_keys() {
  if (Result<void> there = require(Op::kListKeys); !there) return there.error();
  out_.clear();
  put(Op::kListKeys);
  auto keys = exchange(
      Op::kListKeys, Repeat::kFreely, kNoDeadline,
      [&]() -> Result<std::vector<std::string>> {
        Result<std::int64_t> count = read_number();
        if (!count) return count.error();
        return read_strings(static_cast<std::size_t>(std::max<long>(*count, 0)));
      },
      2);
  if (!keys) {
    if (broken_) return keys;
    return make_error(Errc::kInvalidArgument,
                      "{} closes the connection at LIST_KEYS: it is {}, which has none before 2.10",
                      where_, speaks(kind_.dialect));
  }
  std::vector<std::string> own;
  for (std::string& key : *keys) {
    if (key.starts_with('/')) own.push_back(key.substr(1));
  }
  return own;
}

// A wait that cannot be cancelled costs the connection if it times out, so first look whether it is
// needed.
Result<bool> TcpClient::wait_for(const std::vector<std::string>& keys, TimePoint deadline) {
  if (!dialect_has(Op::kCancelWait)) {
    Result<bool> there = check(keys);
    if (!there || *there) return there;
    if (Clock::now() >= deadline) return false;
  }
  out_.clear();
  if (Result<void> right = put(Op::kWait, keys); !right) return right.error();
  return exchange(Op::kWait, Repeat::kFreely, deadline, [&] { return read_wait(deadline); });
}

Result<void> TcpClient::wait(const std::vector<std::string>& keys, Timeout timeout) {
  const Result<bool> came = wait_for(keys, deadline_after(timeout));
  if (!came) return came.error();
  if (!*came) return missing(keys, timeout);
  return {};
}

Error TcpClient::missing(const std::vector<std::string>& keys, Timeout timeout) {
  std::string names;
  const std::size_t named = std::min(keys.size(), kMaxNamedKeys);
  for (std::size_t i = 0; i < named; ++i) {
    const Result<bool> there = check({keys[i]});
    if (!there) return there.error();
    if (!*there) names += (names.empty() ? "'" : ", '") + keys[i] + "'";
  }
  if (names.empty() && keys.size() == named) names = "(all came just after)";
  if (keys.size() > named) names += fmt::format(" or among {} more keys", keys.size() - named);
  return store_errors::missing(where_, names, timeout);
}

// A server of the newest dialect answers a GET at once even while a WAIT is open; if the key is
// absent, with an empty value. (A legacy server would close, or take the GET for the end of the
// wait. So does PyTorch's newest one without libuv, which shows as a lost connection.)
Result<std::string> TcpClient::get(std::string_view key, Timeout timeout) {
  const TimePoint deadline = deadline_after(timeout);
  if (kind_.dialect == Dialect::kNewest && lost_gets_ < 2) {
    Result<Got> got = get_in_one_trip(key, deadline);
    if (got && got->timed_out) return missing({std::string(key)}, timeout);
    if (got && got->value) return *std::move(got->value);
    if (!got && (broken_ || got.error().code != Errc::kPeerLost)) return got.error();
    if (!got) ++lost_gets_;
  }
  return get_in_two_trips(key, deadline, timeout);
}

Result<TcpClient::Got> TcpClient::get_in_one_trip(std::string_view key, TimePoint deadline) {
  out_.clear();
  if (Result<void> right = put(Op::kWait, key); !right) return right.error();
  if (Result<void> right = put(Op::kGet, key); !right) return right.error();
  return exchange(
      Op::kGet, Repeat::kFreely, deadline, [&] { return read_got(deadline); }, 1);
}

// If the key is there, the answer is WAIT's zero byte, the length and the value. If not, it is a
// length of zero, and WAIT's zero byte when the key comes. So at least eight bytes come at once. If
// all of them are zero, the key is absent or its value is empty. The ninth byte then shows that the
// key is there, and its value is requested again.
Result<TcpClient::Got> TcpClient::read_got(TimePoint deadline) {
  Result<std::string> first = read(8);
  if (!first) return first.error();
  if ((*first)[0] != wire::c10d::kStopWaiting) {
    return make_error(Errc::kProtocol, "answer {} to WAIT", int{(*first)[0]});
  }
  if (*first == std::string_view("\0\0\0\0\0\0\0\0", 8)) {
    Result<bool> came = read_wait(deadline);
    if (!came) return came.error();
    return Got{!*came, std::nullopt};
  }
  const Result<std::string> last = read(1);
  if (!last) return last.error();
  const std::string length = first->substr(1) + *last;
  const std::int64_t size = wire::c10d::get_i64(length.data());
  if (size < 0 || size > (1LL << 30)) {
    return make_error(Errc::kProtocol, "an answer of {} bytes", size);
  }
  Result<std::string> value = read(static_cast<std::size_t>(size));
  if (!value) return value.error();
  return Got{false, *std::move(value)};
}

// Some servers close the connection at a GET of a key that was deleted after it came. Then the wait
// goes on.
Result<std::string> TcpClient::get_in_two_trips(std::string_view key, TimePoint deadline,
                                                Timeout timeout) {
  for (int tried = 1;; ++tried) {
    const Result<bool> came = wait_for({std::string(key)}, deadline);
    if (!came) return came.error();
    if (!*came) return missing({std::string(key)}, timeout);
    out_.clear();
    if (Result<void> right = put(Op::kGet, key); !right) return right.error();
    Result<std::string> value = exchange(
        Op::kGet, Repeat::kFreely, deadline, [&] { return read_string(); }, 1);
    if (value || broken_ || value.error().code != Errc::kPeerLost || tried == kTries) return value;
  }
}

Result<std::vector<std::string>> TcpClient::multi_get(const std::vector<std::string>& keys,
                                                      Timeout timeout) {
  std::vector<std::string> values;
  values.reserve(keys.size());
  const Result<void> there = wait(keys, timeout);
  if (!there) return there.error();
  const bool at_once = dialect_has(Op::kMultiGet);
  const std::size_t most_bytes = at_once ? kBytesAtOnce : kGetBytesAtOnce;
  for (std::size_t begin = 0; begin < keys.size();) {
    std::size_t end = begin, bytes = 0;
    while (end < keys.size() && end - begin < kKeysAtOnce && (end == begin || bytes < most_bytes)) {
      bytes += keys[end++].size() + 16;
    }
    if (Result<void> got = get_some(keys, begin, end, values); !got) return got.error();
    begin = end;
  }
  return values;
}

Result<void> TcpClient::get_some(const std::vector<std::string>& keys, std::size_t begin,
                                 std::size_t end, std::vector<std::string>& values) {
  out_.clear();
  if (dialect_has(Op::kMultiGet)) {
    const auto at = [&](std::size_t i) { return keys.begin() + static_cast<std::ptrdiff_t>(i); };
    if (auto right = put(Op::kMultiGet, std::vector(at(begin), at(end))); !right) return right;
  } else {
    for (std::size_t i = begin; i < end; ++i) {
      if (Result<void> right = put(Op::kGet, keys[i]); !right) return right;
    }
  }
  auto some = exchange(Op::kMultiGet, Repeat::kFreely, kNoDeadline,
                       [&] { return read_strings(end - begin); });
  if (!some) return some.error();
  std::move(some->begin(), some->end(), std::back_inserter(values));
  return {};
}

Result<void> TcpClient::multi_set(const std::vector<std::string>& keys,
                                  const std::vector<std::string>& values) {
  if (auto right = store_errors::check_pairs(keys.size(), values.size()); !right) return right;
  for (std::size_t next = 0; next < keys.size();) {
    Request request;
    request.op = Op::kMultiSet;
    wire_keys_.clear();
    std::size_t bytes = 0;
    while (next < keys.size() && wire_keys_.size() < kKeysAtOnce &&
           (bytes == 0 || bytes + values[next].size() < kBytesAtOnce)) {
      bytes += keys[next].size() + values[next].size() + 17;
      wire_keys_.push_back("/" + keys[next]);
      request.values.emplace_back(values[next++]);
    }
    request.keys.assign(wire_keys_.begin(), wire_keys_.end());
    if (Result<void> right = check_limits(request); !right) return right;
    out_.clear();
    if (dialect_has(Op::kMultiSet)) {
      wire::c10d::encode_request(request, kind_.dialect, out_);
    } else {
      Request single;
      single.op = Op::kSet;
      for (std::size_t i = 0; i < request.keys.size(); ++i) {
        single.key = request.keys[i];
        single.value = request.values[i];
        wire::c10d::encode_request(single, kind_.dialect, out_);
      }
    }
    put(kConfirmation);
    Result<void> done =
        exchange(Op::kMultiSet, Repeat::kFreely, kNoDeadline, [&] { return read_confirmation(); });
    if (!done) return done;
  }
  return {};
}

Result<void> TcpClient::queue_push(std::string_view key, std::string_view value) {
  if (Result<void> there = require(Op::kQueuePush); !there) return there;
  out_.clear();
  if (Result<void> right = put(Op::kQueuePush, key, value); !right) return right;
  put(kConfirmation);
  return exchange(Op::kQueuePush, Repeat::kIfNotSent, kNoDeadline,
                  [&] { return read_confirmation(); });
}

Result<std::optional<std::string>> TcpClient::pop_now(std::string_view key) {
  using Popped = Result<std::optional<std::string>>;
  out_.clear();
  if (Result<void> right = put(Op::kQueuePop, key); !right) return right.error();
  return exchange(Op::kQueuePop, Repeat::kIfNotSent, kNoDeadline, [&]() -> Popped {
    const Result<std::int64_t> length = read_number();
    if (!length) return length.error();
    if (*length <= 0) return std::optional<std::string>();
    Result<std::string> value = read_string();
    if (!value) return value.error();
    return std::optional(*std::move(value));
  });
}

Result<std::string> TcpClient::queue_pop(std::string_view key, Timeout timeout) {
  if (Result<void> there = require(Op::kQueuePop); !there) return there.error();
  const TimePoint deadline = deadline_after(timeout);
  Backoff backoff;
  while (true) {
    Result<std::optional<std::string>> value = pop_now(key);
    if (!value) return value.error();
    if (*value) return **std::move(value);
    if (Clock::now() >= deadline) return store_errors::empty_queue(where_, key, timeout);
    const TimePoint look_again = std::min(deadline, Clock::now() + kLookIntoQueue);
    const Result<bool> came = wait_for({std::string(key)}, look_again);
    if (!came) return came.error();
    // Another client was quicker, or the key has a value instead of a queue.
    if (*came && Clock::now() < deadline) {
      value = pop_now(key);
      if (!value) return value.error();
      if (*value) return **std::move(value);
      backoff.pause(deadline);
    }
  }
}

Result<std::int64_t> TcpClient::queue_len(std::string_view key) {
  if (Result<void> there = require(Op::kQueueLen); !there) return there.error();
  out_.clear();
  if (Result<void> right = put(Op::kQueueLen, key); !right) return right.error();
  return exchange(Op::kQueueLen, Repeat::kFreely, kNoDeadline, [&] { return read_number(); });
}

Result<void> TcpClient::barrier(std::string_view key, int world_size, Timeout timeout) {
  if (auto right = store_errors::check_world_size(key, world_size); !right) return right;
  const TimePoint deadline = deadline_after(timeout);
  bool came = false;
  if (Result<void> waited = wait_barrier(key, world_size, deadline, came); !waited) return waited;
  if (came) return {};
  const Result<std::int64_t> count = add(key, 0);
  if (!count) return count.error();
  return store_errors::incomplete_barrier(where_, key, *count, world_size, timeout);
}

Result<void> TcpClient::wait_barrier(std::string_view key, int world_size, TimePoint deadline,
                                     bool& came) {
  const Result<bool> at_server = has(Op::kBarrier);
  if (!at_server) return at_server.error();
  if (*at_server) {
    out_.clear();
    if (auto right = put(Op::kBarrier, key, {}, {}, world_size); !right) return right;
    const Result<bool> waited =
        exchange(Op::kBarrier, Repeat::kIfNotSent, deadline, [&] { return read_wait(deadline); });
    if (!waited) return waited.error();
    came = *waited;
    return {};
  }
  const Result<std::int64_t> count = add(key, 1);
  if (!count) return count.error();
  const std::string open = std::string(key) + kBarrierOpen;
  if (*count >= world_size) {
    came = true;
    return set(open, "");
  }
  const Result<bool> waited = wait_for({open}, deadline);
  if (!waited) return waited.error();
  came = *waited;
  return {};
}

Result<bool> TcpClient::has(Op op) {
  if (!dialect_has(op)) return false;
  const bool is_barrier = op == Op::kBarrier;
  const bool is_queue = op == Op::kQueuePush || op == Op::kQueuePop || op == Op::kQueueLen;
  if (!is_barrier && !is_queue) return true;
  std::optional<bool>& known = is_barrier ? has_barrier_ : has_queues_;
  if (known) return *known;
  // A server closes the connection at an unknown request. So try one that changes nothing.
  const std::string key =
      fmt::format("ddp/probe/{}/{}", ::getpid(), Clock::now().time_since_epoch().count());
  out_.clear();
  if (is_barrier) {
    if (auto right = put(Op::kBarrier, key); !right) return right.error();
    if (auto right = put(Op::kDeleteKey, key); !right) return right.error();
  } else {
    if (auto right = put(Op::kQueueLen, key); !right) return right.error();
  }
  const std::size_t answer_bytes = is_barrier ? 9 : 8;
  const Result<std::string> answer = exchange(
      op, Repeat::kFreely, kNoDeadline, [&] { return read(answer_bytes); }, 2);
  if (!answer && broken_) return answer.error();
  known = answer.has_value();
  return *known;
}

Result<void> TcpClient::require(Op op) {
  const Result<bool> there = has(op);
  if (!there) return there.error();
  if (*there) return {};
  const char* since = op == Op::kAppend ? "2.1" : op == Op::kListKeys ? "2.10" : "2.8";
  return make_error(
      Errc::kInvalidArgument,
      "{} has no {}: it is {}, and PyTorch has it only from {} on; ddp-rendezvous has it", where_,
      wire::c10d::op_name(op), speaks(kind_.dialect), since);
}

}  // namespace ddp
