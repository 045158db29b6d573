#include "common/wire/error_file.h"

#include <nlohmann/json.hpp>

namespace ddp::wire {

std::string encode_error_file(const ErrorFile& error) {
  nlohmann::json json;
  nlohmann::json& message = json["message"];
  message["message"] = error.message;
  message["extraInfo"]["py_callstack"] = nullptr;
  if (!error.callstack.empty()) message["extraInfo"]["py_callstack"] = error.callstack;
  message["extraInfo"]["timestamp"] = std::to_string(error.time_ms / 1'000);
  if (error.exit_code) message["errorCode"] = *error.exit_code;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

ErrorFile decode_error_file(std::string_view text) {
  const auto text_of = [](const nlohmann::json& object, const char* name) {
    return object.contains(name) && object[name].is_string() ? object[name].get<std::string>()
                                                             : std::string();
  };
  ErrorFile error;
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("message")) return error;
  const nlohmann::json& message = json["message"];
  if (message.is_string()) error.message = message.get<std::string>();
  if (!message.is_object()) return error;
  error.message = text_of(message, "message");
  if (message.contains("extraInfo") && message["extraInfo"].is_object())
    error.callstack = text_of(message["extraInfo"], "py_callstack");
  return error;
}

}  // namespace ddp::wire
