#include <algorithm>

#include "common/store/store_errors.h"
#include "common/store/tcp_client.h"
#include "common/wait/deadline.h"

namespace ddp::store {
namespace {

using wire::c10d::Dialect;

// The limits of PyTorch's own server, which closes the connection beyond them.
constexpr std::size_t kMaxKeyBytes = 8u << 10;
constexpr std::size_t kMaxValueBytes = 8u << 20;
constexpr std::size_t kMaxKeys = 131'072;

constexpr std::size_t kMaxNamedKeys = 16;

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
  const std::size_t largest = std::max(request.value.size(), request.expected.size());
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

Error TcpClient::lacks_list_keys() const {
  return make_error(Errc::kInvalidArgument,
                    "{} has no LIST_KEYS: it is {}, and PyTorch has it only from 2.10 on; "
                    "ddp-rendezvous has it",
                    where_, speaks(kind_.dialect));
}

Result<std::vector<std::string>> TcpClient::list_keys() {
  if (!dialect_has(Op::kListKeys)) return lacks_list_keys();
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
    return broken_ ? *broken_ : lacks_list_keys();
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
  given_up_ = false;
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
  if (given_up_) return given_up(where_);
  std::string names;
  const std::size_t named = std::min(keys.size(), kMaxNamedKeys);
  for (std::size_t i = 0; i < named; ++i) {
    const Result<bool> there = check({keys[i]});
    if (!there) return there.error();
    if (!*there) names += (names.empty() ? "'" : ", '") + keys[i] + "'";
  }
  if (names.empty() && keys.size() == named) names = "(all came just after)";
  if (keys.size() > named) names += fmt::format(" or among {} more keys", keys.size() - named);
  return missing_keys(where_, names, timeout);
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
  if (keys.empty()) return std::vector<std::string>();
  if (Result<void> there = wait(keys, timeout); !there) return there.error();
  if (!dialect_has(Op::kMultiGet)) {
    std::vector<std::string> values;
    for (const std::string& key : keys) {
      Result<std::string> value = get(key, timeout);
      if (!value) return value.error();
      values.push_back(*std::move(value));
    }
    return values;
  }
  out_.clear();
  if (Result<void> right = put(Op::kMultiGet, keys); !right) return right.error();
  return exchange(Op::kMultiGet, Repeat::kFreely, kNoDeadline,
                  [&] { return read_strings(keys.size()); });
}

}  // namespace ddp::store
