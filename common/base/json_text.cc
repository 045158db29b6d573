#include "common/base/json_text.h"

#include <nlohmann/json.hpp>

namespace ddp {

using nlohmann::json;

std::string dump_json(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

std::string dump_ordered_json(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

json parse_json(std::string_view text) { return json::parse(text); }

json parse_json_or_discard(std::string_view text) { return json::parse(text, nullptr, false); }

std::string encode_cbor(const json& value) {
  std::string bytes;
  json::to_cbor(value, bytes);
  return bytes;
}

json decode_cbor(std::string_view bytes) { return json::from_cbor(bytes); }

}  // namespace ddp
