#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"

// Requests of PyTorch's TCPStore as bytes. All integers are little-endian; a string is a u64 length
// and that many bytes; there is no request number, no status and no error answer.
//
// Opcodes moved between releases and no version travels, so the first bytes of a connection decide:
// the newest dialect always begins with VALIDATE, 00 CE F7 85 3C. In the older ones the same bytes
// would be a SET with a key of 968 MiB, which no limit here lets pass.
//
// Those two are alike but for two opcodes: 7 is kLegacy's WATCH_KEY and kInterim's DELETE_KEY, 8 is
// kLegacy's DELETE_KEY and kInterim's APPEND. Only kInterim goes on behind 8. So somebody has to
// say which of them an old connection speaks, and one that sends 9, 10 or 11 speaks kInterim from
// there on, whatever was said.
namespace ddp::wire::c10d {

enum class Dialect {
  kNewest,   // PyTorch >= 2.2.
  kInterim,  // PyTorch 2.1 (opcodes 0 to 11).
  kLegacy,   // PyTorch 1.9 to 2.0 (opcodes 0 to 8).
};
inline constexpr std::size_t kDialectCount = 3;

enum class Op {
  kValidate,
  kPing,
  kSet,
  kCompareSet,
  kGet,
  kAdd,
  kCheck,
  kWait,
  kNumKeys,
  kWatchKey,  // kLegacy only.
  kDeleteKey,
  kAppend,
  kMultiGet,
  kMultiSet,
  kCancelWait,
  kQueuePush,
  kQueuePop,
  kQueueLen,
  kListKeys,
  kBarrier,
};
inline constexpr std::size_t kOpCount = 20;
const char* op_name(Op op);

inline constexpr std::uint32_t kValidateMagic = 0x3C85F7CE;

// First byte of an answer.
inline constexpr char kReady = '\x00';  // CHECK
inline constexpr char kNotReady = '\x01';
inline constexpr char kStopWaiting = '\x00';  // WAIT, BARRIER
inline constexpr char kWaitCanceled = '\x01';
inline constexpr char kKeyUpdated = '\x00';  // WATCH_KEY and its pushes
inline constexpr char kKeyCreated = '\x01';
inline constexpr char kKeyDeleted = '\x02';
inline constexpr char kCallbackRegistered = '\x03';

// One request. Which members count depends on the operation. The views point into what the maker
// keeps: the parser's buffer, or a client's arguments.
struct Request {
  Op op = Op::kValidate;
  std::string_view key;
  std::string_view value;     // SET, APPEND, QUEUE_PUSH; the desired value of COMPARE_SET.
  std::string_view expected;  // COMPARE_SET.
  // ADD: the delta. PING: the nonce. VALIDATE: the magic. BARRIER: the world size.
  std::int64_t number = 0;
  std::vector<std::string_view> keys;    // CHECK, WAIT, MULTI_GET, MULTI_SET.
  std::vector<std::string_view> values;  // MULTI_SET, as many as keys.
};

// More than PyTorch's own server of today allows (8 KiB, 8 MiB, 131072), because the servers of the
// legacy dialect had no limit and users came to rely on it. A length beyond is an error before a
// single byte of it is buffered.
struct Limits {
  std::uint64_t key_bytes = 128u << 10;
  std::uint64_t value_bytes = 64u << 20;
  std::uint64_t count = 131'072;
  std::uint64_t request_bytes = 128u << 20;
};

// Appends the request; the dialect must have the operation.
void encode_request(const Request& request, Dialect dialect, std::string& out);
bool has_op(Dialect dialect, Op op);

// Cuts requests out of one connection's bytes. Each byte is looked at once, however the bytes are
// cut into pieces, and memory follows the bytes that came, never a length that was announced. Not
// thread safe.
class RequestParser {
 public:
  // `old` is what a connection without VALIDATE speaks until it proves otherwise: kLegacy or
  // kInterim.
  explicit RequestParser(const Limits& limits = {}, Dialect old = Dialect::kLegacy)
      : limits_(limits), old_(old) {}

  void append(std::string_view bytes);
  // The next whole request, valid until the next call of append() or next(); null while it is
  // incomplete. kProtocol for bytes that are no request of the dialect or exceed a limit: the
  // stream is then unusable, and every later call says so again.
  Result<const Request*> next();

  // That of the request given out last. Known from the first bytes on; VALIDATE is given out as the
  // first request of kNewest, and kLegacy may become kInterim later.
  std::optional<Dialect> dialect() const { return dialect_; }
  std::size_t buffered_bytes() const { return buffer_.size() - start_; }
  // Allocated, beside the object itself. Little while no request is under way.
  std::size_t memory_bytes() const;

 private:
  struct Span {
    std::size_t offset = 0;  // From the start of the request.
    std::size_t size = 0;
  };

  bool detect_dialect();
  Result<bool> begin_request();
  Result<bool> parse_items();
  Result<bool> parse_item(char kind);
  Result<bool> parse_string(std::uint64_t limit, const char* what);
  bool take(std::size_t count, std::uint64_t& out);
  void finish_request();
  void discard_consumed();
  void become_idle();

  Limits limits_;
  Dialect old_;
  std::string buffer_;
  std::size_t start_ = 0;  // Of the current request. Invariant: start_ + cursor_ <= buffer_.size().
  std::size_t cursor_ = 0;
  std::optional<Dialect> dialect_;
  bool validated_ = false;
  std::optional<Error> broken_;

  // The request under way: which item of its grammar comes next, and what has been read.
  bool in_request_ = false;
  const char* grammar_ = "";
  std::optional<std::uint64_t> repeat_;  // Elements left of the list under way.
  std::optional<std::uint64_t> length_;  // Of the string whose bytes are awaited.
  std::vector<Span> spans_;
  Request request_;
};

// Answers.
void put_u32(std::string& out, std::uint32_t value);
void put_i64(std::string& out, std::int64_t value);
void put_string(std::string& out, std::string_view value);
std::int64_t get_i64(const char* bytes);

// ADD's arithmetic: the number that `text` begins with, as C's strtoll reads it (leading spaces,
// then digits, anything behind them ignored), plus `delta`, wrapping at 64 bits. kInvalidArgument
// if there is no number or it does not fit.
Result<std::int64_t> add_to_decimal(std::string_view text, std::int64_t delta);

}  // namespace ddp::wire::c10d
