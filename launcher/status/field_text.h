#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "common/terminal/terminal.h"

namespace ddp::status {

// A text of the daemon's answer, for a terminal; empty if there is none.
inline std::string field_text(const nlohmann::json& object, const char* field) {
  return terminal::harmless(object.value(field, ""));
}

}  // namespace ddp::status
