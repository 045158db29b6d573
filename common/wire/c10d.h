#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"

// Requests of PyTorch's TCPStore as bytes. All integers are little-endian. A string is a u64 length
// and that many bytes. There are no request numbers, no status and no error answers.
//
// Opcodes moved between releases, and no version is sent. So the first bytes of a connection tell
// the dialect: the newest one always begins with VALIDATE, 00 CE F7 85 3C. In the older ones these
// bytes would be a SET with a key of 968 MiB, which exceeds every limit here.
//
// The two older ones differ in two opcodes: 7 is kLegacy's WATCH_KEY and kInterim's DELETE_KEY, 8
// is kLegacy's DELETE_KEY and kInterim's APPEND. Only kInterim has opcodes above 8. So the caller
// must say which of them an old connection speaks. A connection that sends 9, 10 or 11 speaks
// kInterim from there on in any case.
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

// One request. Which members are used depends on the operation. The views point into memory of its
// maker: the parser's buffer, or a client's arguments.
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

// Larger than those of PyTorch's current server (8 KiB, 8 MiB, 131072), because servers of the
// legacy dialect had no limits and users came to rely on that. A length beyond a limit is an error
// before any byte of it is buffered.
struct Limits {
  std::uint64_t key_bytes = 128u << 10;
  std::uint64_t value_bytes = 64u << 20;
  std::uint64_t count = 131'072;
  std::uint64_t request_bytes = 128u << 20;
};

// Appends the request; the dialect must have the operation.
void encode_request(const Request& request, Dialect dialect, std::string& out);
bool has_op(Dialect dialect, Op op);

// Cuts requests out of one connection's bytes. It looks at each byte once, whatever the sizes of
// the pieces. It allocates memory for bytes that came, never for a length that was only announced.
// Not thread safe.
class RequestParser {
 public:
  // `old`: the dialect of a connection without VALIDATE until it proves otherwise, kLegacy or
  // kInterim.
  explicit RequestParser(const Limits& limits = {}, Dialect old = Dialect::kLegacy)
      : limits_(limits), old_(old) {}

  void append(std::string_view bytes);
  // The next whole request, valid until the next call of append() or next(); null while it is
  // incomplete. kProtocol for bytes that are not a request of the dialect or exceed a limit. The
  // stream is then unusable, and every later call returns the same error.
  Result<const Request*> next();

  // The dialect of the request that next() returned last. Known from the first bytes on. VALIDATE
  // is returned as the first request of kNewest. kLegacy may become kInterim later.
  std::optional<Dialect> dialect() const { return dialect_; }
  std::size_t buffered_bytes() const { return buffer_.size() - start_; }
  // Allocated memory, without the object itself. Little while no request is under way.
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
  std::optional<std::uint64_t> length_;  // The length of the string whose bytes are awaited.
  std::vector<Span> spans_;
  Request request_;
};

// Answers.
void put_u32(std::string& out, std::uint32_t value);
void put_i64(std::string& out, std::int64_t value);
void put_string(std::string& out, std::string_view value);
std::int64_t get_i64(const char* bytes);

}  // namespace ddp::wire::c10d
