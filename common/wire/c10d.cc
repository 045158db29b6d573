#include "common/wire/c10d.h"

#include <algorithm>
#include <array>

namespace ddp::wire::c10d {
namespace {

constexpr int kNoOpcode = -1;

// The parts of a request after its opcode: k key, v value, u u32, i i64, K list of keys, P list of
// key and value pairs.
struct OpInfo {
  const char* name;
  const char* grammar;
  int opcodes[kDialectCount];  // By dialect: newest, interim, legacy.
};

constexpr std::array<OpInfo, kOpCount> kOps{{
    {"VALIDATE", "u", {0, kNoOpcode, kNoOpcode}},
    {"PING", "u", {13, kNoOpcode, kNoOpcode}},
    {"SET", "kv", {1, 0, 0}},
    {"COMPARE_SET", "kvv", {2, 1, 1}},
    {"GET", "k", {3, 2, 2}},
    {"ADD", "ki", {4, 3, 3}},
    {"CHECK", "K", {5, 4, 4}},
    {"WAIT", "K", {6, 5, 5}},
    {"GETNUMKEYS", "", {7, 6, 6}},
    {"WATCH_KEY", "k", {kNoOpcode, kNoOpcode, 7}},
    {"DELETE_KEY", "k", {8, 7, 8}},
    {"APPEND", "kv", {9, 8, kNoOpcode}},
    {"MULTI_GET", "K", {10, 9, kNoOpcode}},
    {"MULTI_SET", "P", {11, 10, kNoOpcode}},
    {"CANCEL_WAIT", "", {12, 11, kNoOpcode}},
    {"QUEUE_PUSH", "kv", {14, kNoOpcode, kNoOpcode}},
    {"QUEUE_POP", "k", {15, kNoOpcode, kNoOpcode}},
    {"QUEUE_LEN", "k", {16, kNoOpcode, kNoOpcode}},
    {"LIST_KEYS", "", {17, kNoOpcode, kNoOpcode}},
    {"BARRIER", "ki", {18, kNoOpcode, kNoOpcode}},
}};

const OpInfo& info(Op op) { return kOps[static_cast<std::size_t>(op)]; }

int opcode(Op op, Dialect dialect) { return info(op).opcodes[static_cast<std::size_t>(dialect)]; }

constexpr std::size_t kOpcodeLimit = 19;

std::optional<Op> find_op(unsigned char byte, Dialect dialect) {
  using Table = std::array<std::optional<Op>, kOpcodeLimit>;
  static const std::array<Table, kDialectCount> tables = [] {
    std::array<Table, kDialectCount> out{};
    for (std::size_t i = 0; i < kOpCount; ++i) {
      for (std::size_t of = 0; of < kDialectCount; ++of) {
        const int code = kOps[i].opcodes[of];
        if (code != kNoOpcode) out[of][static_cast<std::size_t>(code)] = Op(i);
      }
    }
    return out;
  }();
  if (byte >= kOpcodeLimit) return std::nullopt;
  return tables[static_cast<std::size_t>(dialect)][byte];
}

void put_little_endian(std::string& out, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) {
    out.push_back(static_cast<char>((value >> (8 * i)) & 0xFF));
  }
}

std::uint64_t get_little_endian(const char* bytes, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) {
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
}

constexpr std::array<char, 5> kValidateBytes{'\x00', '\xCE', '\xF7', '\x85', '\x3C'};

// How much memory an idle connection keeps, so that small requests allocate nothing.
constexpr std::size_t kKeepBytes = 512;
constexpr std::size_t kKeepKeys = 8;

template <typename Items>
void clear_and_trim(Items& items, std::size_t keep) {
  items.clear();
  if (items.capacity() > keep) items.shrink_to_fit();
}

}  // namespace

const char* op_name(Op op) { return info(op).name; }

bool has_op(Dialect dialect, Op op) { return opcode(op, dialect) != kNoOpcode; }

void put_u32(std::string& out, std::uint32_t value) { put_little_endian(out, value, 4); }
void put_i64(std::string& out, std::int64_t value) {
  put_little_endian(out, static_cast<std::uint64_t>(value), 8);
}
void put_string(std::string& out, std::string_view value) {
  put_little_endian(out, value.size(), 8);
  out.append(value);
}
std::int64_t get_i64(const char* bytes) {
  return static_cast<std::int64_t>(get_little_endian(bytes, 8));
}

void encode_request(const Request& request, Dialect dialect, std::string& out) {
  const int code = opcode(request.op, dialect);
  DDP_CHECK(code != kNoOpcode, "{} is not in this dialect", op_name(request.op));
  out.push_back(static_cast<char>(code));
  // COMPARE_SET is the one request with two values: the expected one goes first.
  bool expected_first = request.op == Op::kCompareSet;
  for (const char* item = info(request.op).grammar; *item != '\0'; ++item) {
    switch (*item) {
      case 'k':
        put_string(out, request.key);
        break;
      case 'v':
        put_string(out, expected_first ? request.expected : request.value);
        expected_first = false;
        break;
      case 'u':
        put_u32(out, static_cast<std::uint32_t>(request.number));
        break;
      case 'i':
        put_i64(out, request.number);
        break;
      default:
        DDP_CHECK(*item == 'K' || request.values.size() == request.keys.size(),
                  "{} keys, {} values", request.keys.size(), request.values.size());
        put_little_endian(out, request.keys.size(), 8);
        for (std::size_t i = 0; i < request.keys.size(); ++i) {
          put_string(out, request.keys[i]);
          if (*item == 'P') put_string(out, request.values[i]);
        }
    }
  }
}

void RequestParser::append(std::string_view bytes) {
  if (broken_) return;
  discard_consumed();
  buffer_.append(bytes);
}

void RequestParser::discard_consumed() {
  if (start_ == 0) return;
  buffer_.erase(0, start_);
  start_ = 0;
}

// Frees memory: thousands of connections are idle for each that is not.
void RequestParser::become_idle() {
  clear_and_trim(buffer_, kKeepBytes);
  start_ = 0;
  clear_and_trim(request_.keys, kKeepKeys);
  clear_and_trim(request_.values, kKeepKeys);
  clear_and_trim(spans_, kKeepKeys);
}

bool RequestParser::detect_dialect() {
  const std::size_t count = std::min(buffer_.size(), kValidateBytes.size());
  if (count == 0) return false;
  if (!std::equal(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(count),
                  kValidateBytes.begin())) {
    dialect_ = old_;
    return true;
  }
  if (count < kValidateBytes.size()) return false;
  dialect_ = Dialect::kNewest;
  return true;
}

Result<const Request*> RequestParser::next() {
  if (broken_) return *broken_;
  if (!dialect_ && !detect_dialect()) return static_cast<const Request*>(nullptr);
  Result<bool> whole = in_request_ ? Result<bool>(true) : begin_request();
  if (whole && *whole) whole = parse_items();
  if (!whole) {
    broken_ = whole.error();
    buffer_ = std::string();
    start_ = cursor_ = 0;
    return *broken_;
  }
  if (!*whole) return static_cast<const Request*>(nullptr);
  finish_request();
  return static_cast<const Request*>(&request_);
}

Result<bool> RequestParser::begin_request() {
  cursor_ = 0;
  if (start_ == buffer_.size()) {
    become_idle();
    return false;
  }
  const auto byte = static_cast<unsigned char>(buffer_[start_]);
  std::optional<Op> op = find_op(byte, *dialect_);
  if (!op && *dialect_ == Dialect::kLegacy) {
    op = find_op(byte, Dialect::kInterim);
    if (op) dialect_ = Dialect::kInterim;
  }
  if (!op) {
    return make_error(
        Errc::kProtocol,
        "unknown opcode {}: the client is not a PyTorch store client, or of a newer release", byte);
  }
  if (*op == Op::kValidate && validated_) {
    return make_error(Errc::kProtocol, "VALIDATE is sent once, as the first request");
  }
  validated_ = true;
  request_.op = *op;
  request_.key = request_.value = request_.expected = {};  // They would be views of freed memory.
  request_.keys.clear();
  request_.values.clear();
  spans_.clear();
  repeat_.reset();
  length_.reset();
  grammar_ = info(*op).grammar;
  in_request_ = true;
  cursor_ = 1;
  return true;
}

Result<bool> RequestParser::parse_items() {
  while (*grammar_ != '\0') {
    Result<bool> done = parse_item(*grammar_);
    if (!done || !*done) return done;
    ++grammar_;
  }
  return true;
}

Result<bool> RequestParser::parse_item(char kind) {
  std::uint64_t number = 0;
  switch (kind) {
    case 'k':
      return parse_string(limits_.key_bytes, "key");
    case 'v':
      return parse_string(limits_.value_bytes, "value");
    case 'u':
    case 'i':
      if (!take(kind == 'u' ? 4 : 8, number)) return false;
      request_.number = static_cast<std::int64_t>(number);
      return true;
    default:
      break;
  }
  if (!repeat_) {
    if (!take(8, number)) return false;
    if (number > limits_.count) {
      return make_error(Errc::kProtocol, "{} with {} keys, the limit is {}", op_name(request_.op),
                        number, limits_.count);
    }
    repeat_ = kind == 'P' ? 2 * number : number;
  }
  while (*repeat_ > 0) {
    const bool is_value = kind == 'P' && *repeat_ % 2 == 1;
    Result<bool> done = parse_string(is_value ? limits_.value_bytes : limits_.key_bytes,
                                     is_value ? "value" : "key");
    if (!done || !*done) return done;
    --*repeat_;
  }
  return true;
}

Result<bool> RequestParser::parse_string(std::uint64_t limit, const char* what) {
  if (!length_) {
    std::uint64_t length = 0;
    if (!take(8, length)) return false;
    if (length > limit) {
      return make_error(Errc::kProtocol, "{} with a {} of {} bytes, the limit is {}",
                        op_name(request_.op), what, length, limit);
    }
    if (cursor_ + length > limits_.request_bytes) {
      return make_error(Errc::kProtocol, "{} of more than {} bytes", op_name(request_.op),
                        limits_.request_bytes);
    }
    length_ = length;
  }
  if (buffer_.size() - start_ - cursor_ < *length_) return false;
  spans_.push_back({cursor_, static_cast<std::size_t>(*length_)});
  cursor_ += *length_;
  length_.reset();
  return true;
}

bool RequestParser::take(std::size_t count, std::uint64_t& out) {
  if (buffer_.size() - start_ - cursor_ < count) return false;
  out = get_little_endian(buffer_.data() + start_ + cursor_, count);
  cursor_ += count;
  return true;
}

std::size_t RequestParser::memory_bytes() const {
  return buffer_.capacity() + spans_.capacity() * sizeof(Span) +
         (request_.keys.capacity() + request_.values.capacity()) * sizeof(std::string_view);
}

// The buffer does not move until the next append(), so offsets become views only here.
void RequestParser::finish_request() {
  const auto view = [this](const Span& span) {
    return std::string_view(buffer_).substr(start_ + span.offset, span.size);
  };
  switch (info(request_.op).grammar[0]) {
    case 'k':
      request_.key = view(spans_[0]);
      if (spans_.size() == 2) request_.value = view(spans_[1]);
      if (spans_.size() == 3) {
        request_.expected = view(spans_[1]);
        request_.value = view(spans_[2]);
      }
      break;
    case 'K':
      for (const Span& span : spans_) request_.keys.push_back(view(span));
      break;
    case 'P':
      for (std::size_t i = 0; i < spans_.size(); i += 2) {
        request_.keys.push_back(view(spans_[i]));
        request_.values.push_back(view(spans_[i + 1]));
      }
      break;
    default:
      break;
  }
  start_ += cursor_;
  cursor_ = 0;
  in_request_ = false;
}

}  // namespace ddp::wire::c10d
