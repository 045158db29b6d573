#include "launcher/page/merge_patch.h"

#include <nlohmann/json.hpp>

namespace ddp::page {

nlohmann::json merge_patch(const nlohmann::json& from, const nlohmann::json& to) {
  if (!from.is_object() || !to.is_object()) return to;
  nlohmann::json patch = nlohmann::json::object();
  for (const auto& [name, value] : to.items()) {
    const auto known = from.find(name);
    if (known == from.end()) {
      patch[name] = value;
    } else if (*known != value) {
      patch[name] = merge_patch(*known, value);
    }
  }
  for (const auto& [name, value] : from.items()) {
    if (!to.contains(name)) patch[name] = nullptr;
  }
  return patch;
}

}  // namespace ddp::page
