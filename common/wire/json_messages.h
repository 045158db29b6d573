#pragma once

#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <variant>

#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "common/base/result.h"

// How a variant of message structs becomes {"type": name, fields...} and back. Each alternative has
// an overload `const char* type_name(const T*)` found by argument-dependent lookup, and nlohmann's
// to_json/from_json.
namespace ddp::wire {

// For measured numbers, which may be NaN or infinite. JSON has neither, so such a number is left
// out. A number that is absent or null reads as NaN.
inline void put_number(nlohmann::json& object, const char* field, double value) {
  if (std::isfinite(value)) object[field] = value;
}
inline double get_number(const nlohmann::json& object, const char* field) {
  const auto found = object.find(field);
  if (found == object.end() || found->is_null()) return std::numeric_limits<double>::quiet_NaN();
  return found->get<double>();
}

// Without the fields in `left_out`.
template <typename... Ts>
std::string encode_variant(const std::variant<Ts...>& message,
                           std::initializer_list<const char*> left_out = {}) {
  nlohmann::json json = std::visit(
      [](const auto& value) {
        nlohmann::json object = value;
        if (object.is_null()) object = nlohmann::json::object();
        object["type"] = type_name(&value);
        return object;
      },
      message);
  for (const char* field : left_out) json.erase(field);
  return dump_json(json);
}

template <typename Variant, typename T>
bool decode_if(const std::string& type, const nlohmann::json& json, Variant& out) {
  if (type != type_name(static_cast<const T*>(nullptr))) return false;
  json.get_to(out.template emplace<T>());
  return true;
}

// kNotFound: a type that this release does not know. kProtocol: anything else that is wrong.
template <typename... Ts>
Result<std::variant<Ts...>> decode_variant(std::string_view payload, std::variant<Ts...>* /*tag*/) {
  try {
    const nlohmann::json json = parse_json(payload);
    if (!json.is_object() || !json.contains("type") || !json["type"].is_string()) {
      return make_error(Errc::kProtocol, "message without a type, {} bytes", payload.size());
    }
    const std::string type = json["type"].get<std::string>();
    // Decoded in its final place: if the variant is moved, g++ 14 and 16 warn about uninitialized
    // memory in its alternatives.
    Result<std::variant<Ts...>> out = std::variant<Ts...>();
    if ((decode_if<std::variant<Ts...>, Ts>(type, json, *out) || ...)) return out;
    return make_error(Errc::kNotFound, "unknown message type '{}'", type.substr(0, 64));
  } catch (const nlohmann::json::exception& error) {
    return make_error(Errc::kProtocol, "message of {} bytes: {}", payload.size(), error.what());
  }
}

}  // namespace ddp::wire
