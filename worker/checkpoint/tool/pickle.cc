#include "worker/checkpoint/tool/pickle.h"

#include <limits>
#include <utility>

namespace ddp::checkpoint {

Pickle::Pickle() {
  code('\x80');
  code('\x02');
}

void Pickle::global(std::string_view module, std::string_view name) {
  code('c');
  bytes_.append(module).append("\n").append(name).append("\n");
}

void Pickle::text(std::string_view utf8) {
  code('X');
  little_endian(utf8.size(), 4);
  bytes_.append(utf8);
}

void Pickle::integer(std::int64_t value) {
  if (value >= 0 && value <= std::numeric_limits<std::uint8_t>::max()) {
    code('K');
    little_endian(static_cast<std::uint64_t>(value), 1);
  } else if (value >= std::numeric_limits<std::int32_t>::min() &&
             value <= std::numeric_limits<std::int32_t>::max()) {
    code('J');
    little_endian(static_cast<std::uint64_t>(value), 4);
  } else {
    code('\x8a');
    code('\x08');
    little_endian(static_cast<std::uint64_t>(value), 8);
  }
}

void Pickle::integers(const std::vector<std::int64_t>& values) {
  mark();
  for (const std::int64_t value : values) integer(value);
  tuple();
}

std::string Pickle::finish() {
  code('.');
  return std::move(bytes_);
}

void Pickle::little_endian(std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) bytes_ += static_cast<char>(value >> (8 * i));
}

}  // namespace ddp::checkpoint
