#include "common/wire/error_file.h"

#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "common/base/parse_number.h"

namespace ddp::wire {
namespace {

using Json = nlohmann::json;

// A member of this name and kind, or null.
const Json* member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

std::string text_of(const Json* value) {
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

// Torch writes whole seconds as text, older programs as a number; 0 if it is neither.
std::int64_t time_of(const Json* value) {
  constexpr std::int64_t kMaxSeconds = std::int64_t{1} << 40;
  std::int64_t seconds = 0;
  if (value != nullptr && value->is_string()) {
    seconds = parse_whole_number<std::int64_t>(value->get_ref<const std::string&>()).value_or(0);
  } else if (value != nullptr && value->is_number()) {
    const auto number = value->get<double>();
    if (number > 0 && number < static_cast<double>(kMaxSeconds))
      seconds = static_cast<std::int64_t>(number);
  }
  return seconds > 0 && seconds < kMaxSeconds ? seconds * 1'000 : 0;
}

}  // namespace

std::string encode_error_file(const ErrorFile& error) {
  Json json;
  Json& message = json["message"];
  message["message"] = error.message;
  message["extraInfo"]["py_callstack"] = error.callstack.empty() ? error.message : error.callstack;
  message["extraInfo"]["timestamp"] = std::to_string(error.time_ms / 1'000);
  if (error.exit_code) message["errorCode"] = *error.exit_code;
  if (error.secondary) message["extraInfo"]["secondary"] = true;
  return dump_json(json);
}

ErrorFile decode_error_file(std::string_view text) {
  ErrorFile error;
  const Json json = Json::parse(text, nullptr, false);
  const Json* message = member(json, "message");
  if (message == nullptr) return error;
  if (message->is_string()) {
    error.message = message->get<std::string>();
    error.time_ms = time_of(member(json, "timestamp"));
    return error;
  }
  error.message = text_of(member(*message, "message"));
  if (const Json* extra = member(*message, "extraInfo")) {
    error.callstack = text_of(member(*extra, "py_callstack"));
    error.time_ms = time_of(member(*extra, "timestamp"));
    const Json* secondary = member(*extra, "secondary");
    error.secondary = secondary != nullptr && secondary->is_boolean() && secondary->get<bool>();
  }
  if (error.callstack == error.message) error.callstack.clear();
  const Json* code = member(*message, "errorCode");
  if (code != nullptr && code->is_number_integer()) error.exit_code = code->get<int>();
  return error;
}

}  // namespace ddp::wire
