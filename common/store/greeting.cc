#include "common/store/greeting.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "common/base/host_port.h"

namespace ddp::store {
namespace {

using wire::c10d::Dialect;
using wire::c10d::Op;

enum class Greeting { kValidatePing, kValidateCount, kCountCancel, kCount };

// A server of the newest dialect may leave an older greeting unanswered instead of closing.
constexpr std::chrono::seconds kOldGreetingLimit{2};
constexpr std::int64_t kMostKeys = 1LL << 40;

// To a legacy server VALIDATE is a SET, and the eight bytes after its opcode are a length. They
// must be sent, and the length must be more than any machine can allocate. Otherwise the server,
// which reads one request at a time, would wait for the rest, and its other clients would wait with
// it.
constexpr std::uint32_t kNonceLowBytes = 0x00FF'FFFF;
constexpr int kCountsBehindValidate = 4;

void put(std::string& out, Op op, Dialect dialect, std::int64_t number = 0) {
  wire::c10d::Request request;
  request.op = op;
  request.number = number;
  wire::c10d::encode_request(request, dialect, out);
}

Error not_a_store() { return make_error(Errc::kProtocol, "the answer is not that of a TCP store"); }

Result<void> read_count(Socket& socket, TimePoint deadline) {
  Result<std::string> answer = socket.read_exactly(8, deadline);
  if (!answer) return answer.error();
  const std::int64_t count = wire::c10d::get_i64(answer->data());
  if (count < 0 || count > kMostKeys) return not_a_store();
  return {};
}

Result<void> validate(Socket& socket, bool with_ping, TimePoint deadline) {
  // One write: a PyTorch server judges by the first piece that arrives.
  std::string out;
  put(out, Op::kValidate, Dialect::kNewest, wire::c10d::kValidateMagic);
  std::string nonce;
  if (with_ping) {
    wire::c10d::put_u32(nonce, kNonceLowBytes | static_cast<std::uint32_t>(::getpid()) << 24);
    put(out, Op::kPing, Dialect::kNewest,
        kNonceLowBytes | static_cast<std::uint32_t>(::getpid()) << 24);
  } else {
    for (int i = 0; i < kCountsBehindValidate; ++i) put(out, Op::kNumKeys, Dialect::kNewest);
  }
  if (Result<void> written = socket.write_all(out, deadline); !written) return written;
  if (with_ping) {
    Result<std::string> answer = socket.read_exactly(nonce.size(), deadline);
    if (!answer) return answer.error();
    if (*answer != nonce) return not_a_store();
    return {};
  }
  for (int i = 0; i < kCountsBehindValidate; ++i) {
    if (Result<void> count = read_count(socket, deadline); !count) return count;
  }
  return {};
}

// PyTorch 2.1 answers CANCEL_WAIT. Older servers close the connection at it.
Result<void> count_keys(Socket& socket, bool with_cancel, TimePoint deadline) {
  std::string out;
  put(out, Op::kNumKeys, Dialect::kInterim);
  if (with_cancel) put(out, Op::kCancelWait, Dialect::kInterim);
  if (Result<void> written = socket.write_all(out, deadline); !written) return written;
  if (Result<void> count = read_count(socket, deadline); !count) return count;
  if (!with_cancel) return {};
  Result<std::string> answer = socket.read_exactly(1, deadline);
  if (!answer) return answer.error();
  if ((*answer)[0] != wire::c10d::kWaitCanceled) return not_a_store();
  return {};
}

Result<void> greet(Socket& socket, Greeting greeting, TimePoint deadline) {
  switch (greeting) {
    case Greeting::kValidatePing:
      return validate(socket, true, deadline);
    case Greeting::kValidateCount:
      return validate(socket, false, deadline);
    case Greeting::kCountCancel:
      return count_keys(socket, true, deadline);
    default:
      return count_keys(socket, false, deadline);
  }
}

ServerKind kind_of(Greeting greeting) {
  switch (greeting) {
    case Greeting::kValidatePing:
      return {Dialect::kNewest, true};
    case Greeting::kValidateCount:
      return {Dialect::kNewest, false};
    case Greeting::kCountCancel:
      return {Dialect::kInterim, false};
    default:
      return {Dialect::kLegacy, false};
  }
}

// An overloaded server resets some connections whose greeting was right, so the newest greeting is
// tried twice before an older one.
std::vector<Greeting> greetings(const std::optional<ServerKind>& known,
                                const std::optional<Dialect>& dialect) {
  if (!known && !dialect) {
    return {Greeting::kValidatePing, Greeting::kValidatePing, Greeting::kValidateCount,
            Greeting::kCountCancel, Greeting::kCount};
  }
  switch (known ? known->dialect : *dialect) {
    case Dialect::kNewest:
      if (!known) return {Greeting::kValidatePing, Greeting::kValidateCount};
      return {known->has_ping ? Greeting::kValidatePing : Greeting::kValidateCount};
    case Dialect::kInterim:
      return {Greeting::kCountCancel};
    default:
      return {Greeting::kCount};
  }
}

}  // namespace

Result<GreetedSocket> connect_and_greet(const std::string& host, int port,
                                        const std::optional<ServerKind>& known,
                                        const std::optional<Dialect>& dialect, TimePoint deadline) {
  const std::vector<Greeting> all = greetings(known, dialect);
  std::optional<Error> last;
  for (const Greeting greeting : all) {
    Result<Socket> socket = Socket::connect(host, port, deadline);
    if (!socket) return socket.error();
    const bool is_guess = all.size() > 1 && kind_of(greeting).dialect != Dialect::kNewest;
    const TimePoint limit =
        is_guess ? std::min(deadline, Clock::now() + kOldGreetingLimit) : deadline;
    const Result<void> greeted = greet(*socket, greeting, limit);
    if (greeted) return GreetedSocket{*std::move(socket), kind_of(greeting)};
    last = greeted.error();
    if (last->code == Errc::kProtocol) break;
  }
  return make_error(last->code, "{}: {}", host_and_port(host, port), last->message);
}

}  // namespace ddp::store
