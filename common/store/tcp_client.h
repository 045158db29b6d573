#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/store/greeting.h"
#include "common/store/tcp_store.h"

namespace ddp::store {

// The pauses between attempts to connect. Each is twice the one before, with jitter, because
// thousands of clients start at the same moment.
class Backoff {
 public:
  Backoff();
  // Sleeps, at most until `deadline`. False if no time is left for another attempt.
  bool pause(TimePoint deadline);

 private:
  std::minstd_rand random_;
  std::chrono::milliseconds next_{10};
};

// Whether another attempt to connect would fail in the same way.
inline bool is_final(const Error& error) { return error.code == Errc::kProtocol; }

// What connect_tcp_store() returns. Operations are requests over a connection that is restored when
// it is lost. The connection is in tcp_client.cc, the operations are in tcp_operations.cc.
class TcpClient final : public Store {
 public:
  TcpClient(GreetedSocket greeted, std::string host, int port, const TcpStoreOptions& options);

  Result<void> set(std::string_view key, std::string_view value) override;
  Result<std::string> get(std::string_view key, Timeout timeout) override;
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Timeout timeout) override;
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override;
  Result<bool> check(const std::vector<std::string>& keys) override;
  Result<void> wait(const std::vector<std::string>& keys, Timeout timeout) override;
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) override;
  Result<bool> delete_key(std::string_view key) override;
  Result<std::int64_t> num_keys() override;
  Result<std::vector<std::string>> list_keys() override;

 private:
  using Op = wire::c10d::Op;
  using Request = wire::c10d::Request;

  // Whether an operation may be done twice.
  enum class Repeat { kFreely, kIfNotSent };
  static constexpr int kTries = 5;
  // A CHECK of no keys. Sent after a request that has no answer, its answer shows that the request
  // was done.
  static constexpr Op kConfirmation = Op::kCheck;
  static constexpr TimePoint kNoDeadline = TimePoint::max();

  // Requests are collected in out_ before they go. put() checks the limits.
  Result<void> put(Op op, std::string_view key, std::string_view value = {},
                   std::string_view expected = {}, std::int64_t number = 0);
  Result<void> put(Op op, const std::vector<std::string>& keys);
  void put(Op op);
  Result<void> check_limits(const Request& request) const;

  // Sends out_ and calls read(), which takes the answer and gives a Result. Both are repeated on a
  // new connection when this one is lost, at most `tries` times. `op` is for messages.
  template <typename Read>
  std::invoke_result_t<Read> exchange(Op op, Repeat repeat, TimePoint deadline, Read read,
                                      int tries = kTries);
  Result<void> reconnect(TimePoint deadline);
  void drop();
  // Makes the object unusable.
  Error fail(const Error& cause);
  Error give_up(Op op, int tries, const Error& cause) const;
  Error in_doubt(Op op, const Error& cause) const;

  Result<std::string> read(std::size_t count);
  Result<std::int64_t> read_number();
  Result<std::string> read_string();
  Result<std::vector<std::string>> read_strings(std::size_t count);
  Result<void> read_confirmation();
  // Reads the answer to WAIT. False if the deadline or a WaitInterrupt (given_up_) came first; the
  // wait is then cancelled.
  Result<bool> read_wait(TimePoint deadline);
  Result<bool> cancel_wait();

  Result<bool> wait_for(const std::vector<std::string>& keys, TimePoint deadline);
  // WAIT and GET in one request. Without a value and not timed out: the key has come, but its value
  // must be requested again.
  struct Got {
    bool timed_out = false;
    std::optional<std::string> value;
  };
  Result<Got> get_in_one_trip(std::string_view key, TimePoint deadline);
  Result<Got> read_got(TimePoint deadline);
  Result<std::string> get_in_two_trips(std::string_view key, TimePoint deadline, Timeout timeout);
  Error missing(const std::vector<std::string>& keys, Timeout timeout);

  Error lacks_list_keys() const;
  bool dialect_has(Op op) const { return wire::c10d::has_op(kind_.dialect, op); }

  TimePoint answer_deadline() const;

  std::string host_;
  int port_;
  std::string where_;  // "store HOST:PORT"
  TcpStoreOptions options_;
  ServerKind kind_;
  std::optional<Socket> socket_;          // Empty: lost, or dropped on purpose.
  std::optional<TimePoint> tried_since_;  // Without a socket: the first attempt to connect again.
  std::optional<Error> broken_;           // What made the object unusable.

  std::string out_;
  std::vector<std::string> wire_keys_;  // Of the request that put() makes.
  bool given_up_ = false;               // How the last wait ended.
  int lost_gets_ = 0;                   // How often get_in_one_trip() lost the connection.
};

template <typename Read>
std::invoke_result_t<Read> TcpClient::exchange(Op op, Repeat repeat, TimePoint deadline, Read read,
                                               int tries) {
  for (int tried = 1;; ++tried) {
    if (Result<void> there = reconnect(deadline); !there) return there.error();
    if (repeat == Repeat::kIfNotSent && !socket_->is_quiet()) {
      // The connection was lost before anything was sent. A write alone would not show that.
      drop();
      if (Result<void> there = reconnect(deadline); !there) return there.error();
    }
    bool sent = false;
    const Result<void> written = socket_->write_all(out_, answer_deadline(), &sent);
    std::optional<Error> failure;
    if (written) {
      std::invoke_result_t<Read> answer = read();
      if (answer) return answer;
      failure = answer.error();
    } else {
      failure = written.error();
    }
    if (failure->code != Errc::kPeerLost) return fail(*failure);
    drop();
    if (repeat == Repeat::kIfNotSent && sent) return in_doubt(op, *failure);
    if (tried == tries) return give_up(op, tries, *failure);
  }
}

}  // namespace ddp::store
