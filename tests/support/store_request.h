#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/wire/c10d.h"

namespace ddp::test {

// The bytes of a request; for requests that take several keys, `key` is the only one.
inline std::string request_bytes(wire::c10d::Op op, std::string_view key,
                                 std::string_view value = {},
                                 wire::c10d::Dialect dialect = wire::c10d::Dialect::kLegacy) {
  wire::c10d::Request request;
  request.op = op;
  request.key = key;
  request.value = value;
  request.keys = {key};
  std::string out;
  wire::c10d::encode_request(request, dialect, out);
  return out;
}

// A number in the form of an answer.
inline std::string number_bytes(std::int64_t value) {
  std::string out;
  wire::c10d::put_i64(out, value);
  return out;
}

}  // namespace ddp::test
