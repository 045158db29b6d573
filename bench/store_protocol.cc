#include <stdexcept>

#include <fmt/format.h>

#include "bench/store_load.h"
#include "common/wire/c10d.h"

namespace ddp::bench {
namespace {

using wire::c10d::Dialect;
using wire::c10d::Op;
using wire::c10d::Request;

constexpr std::size_t kNumberBytes = 8;

Dialect dialect_of(Protocol protocol) {
  return protocol == Protocol::kC10dNewest ? Dialect::kNewest : Dialect::kLegacy;
}

Exchange c10d_exchange(Protocol protocol, std::string_view op, std::string_view key,
                       std::string_view value) {
  Exchange out;
  const auto put = [&](Request request) {
    request.key = key;
    wire::c10d::encode_request(request, dialect_of(protocol), out.request);
  };
  Request request;
  if (op == "get") {
    request.op = Op::kGet;
    out.answer.bytes = kNumberBytes + value.size();
    put(request);
  } else if (op == "add") {
    request.op = Op::kAdd;
    request.number = 1;
    out.answer.bytes = kNumberBytes;
    put(request);
  } else {
    request.op = Op::kSet;
    request.value = value;
    put(request);
    request.op = Op::kCheck;
    request.keys = {key};
    out.answer.bytes = 1;
    put(request);
  }
  return out;
}

std::string redis_command(const std::vector<std::string_view>& words) {
  std::string out = fmt::format("*{}\r\n", words.size());
  for (const std::string_view word : words) {
    out += fmt::format("${}\r\n{}\r\n", word.size(), word);
  }
  return out;
}

Exchange redis_exchange(std::string_view op, std::string_view key, std::string_view value) {
  if (op == "get") {
    return {redis_command({"GET", key}),
            {fmt::format("${}\r\n{}\r\n", value.size(), value).size()}};
  }
  if (op == "add") return {redis_command({"INCR", key}), {}};
  return {redis_command({"SET", key, value}), {}};
}

}  // namespace

Protocol parse_protocol(std::string_view name) {
  if (name == "c10d-legacy") return Protocol::kC10dLegacy;
  if (name == "c10d-newest") return Protocol::kC10dNewest;
  if (name == "redis") return Protocol::kRedis;
  if (name == "echo") return Protocol::kEcho;
  throw std::invalid_argument(
      fmt::format("unknown protocol '{}': expected c10d-legacy, c10d-newest, redis or echo", name));
}

Exchange greeting(Protocol protocol) {
  Exchange out;
  Request request;
  switch (protocol) {
    case Protocol::kRedis:
      return {redis_command({"PING"}), {}};
    case Protocol::kEcho:
      return {"hello\n", {}};
    case Protocol::kC10dNewest:
      request.op = Op::kValidate;
      request.number = wire::c10d::kValidateMagic;
      wire::c10d::encode_request(request, Dialect::kNewest, out.request);
      break;
    case Protocol::kC10dLegacy:
      break;
  }
  request.op = Op::kNumKeys;
  wire::c10d::encode_request(request, dialect_of(protocol), out.request);
  out.answer.bytes = kNumberBytes;
  return out;
}

Exchange exchange(Protocol protocol, std::string_view op, std::string_view key,
                  std::string_view value) {
  if (op != "get" && op != "set" && op != "add") {
    throw std::invalid_argument(
        fmt::format("unknown operation '{}': expected get, set or add", op));
  }
  if (protocol == Protocol::kRedis) return redis_exchange(op, key, value);
  Exchange out = c10d_exchange(protocol, op, key, value);
  if (protocol == Protocol::kEcho) out.answer.bytes = out.request.size();
  return out;
}

}  // namespace ddp::bench
