#include "worker/ddp/hooks/hook_state.h"

#include <algorithm>
#include <stdexcept>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "worker/ddp/tensors/tensors.h"

namespace ddp {

using nlohmann::json;

HookStateReader::HookStateReader(std::string who, const CommHookState& state)
    : who_(std::move(who)), state_(state) {
  if (!state_.values.is_object()) refuse("has no values");
}

void HookStateReader::refuse(const std::string& text) const {
  throw std::invalid_argument(fmt::format("the state to restore in {} {}", who_, text));
}

void HookStateReader::expect_options(const json& options) const {
  const auto saved = state_.values.find("options");
  if (saved == state_.values.end() || !saved->is_object()) refuse("has no options");
  for (const auto& [name, value] : options.items()) {
    const auto found = saved->find(name);
    if (found == saved->end()) refuse(fmt::format("has no option {}", name));
    if (*found != value) {
      refuse(
          fmt::format("was saved with {} = {}, here it is {}", name, found->dump(), value.dump()));
    }
  }
}

std::int64_t HookStateReader::count(const char* key) const {
  const auto found = state_.values.find(key);
  if (found == state_.values.end()) refuse(fmt::format("has no \"{}\"", key));
  if (!found->is_number_integer() || found->get<std::int64_t>() < 0) {
    refuse(fmt::format("has a \"{}\" that is not a count: {}", key, found->dump()));
  }
  return found->get<std::int64_t>();
}

void HookStateReader::take(const std::map<std::string, at::Tensor>& tensors,
                           const std::vector<std::pair<std::string, NamedTensors*>>& places) const {
  for (const auto& [name, tensor] : tensors) {
    const auto place = std::find_if(places.begin(), places.end(), [&name](const auto& candidate) {
      return name.starts_with(candidate.first) && name.size() > candidate.first.size();
    });
    if (place == places.end()) refuse(fmt::format("has an unknown tensor \"{}\"", name));
    if (!tensor.defined() || !tensor.device().is_cpu() ||
        !at::isFloatingType(tensor.scalar_type())) {
      refuse(
          fmt::format("has a tensor \"{}\" that is not a floating-point tensor on the CPU", name));
    }
    (*place->second)[name.substr(place->first.size())] = tensor.contiguous().clone();
  }
}

}  // namespace ddp
