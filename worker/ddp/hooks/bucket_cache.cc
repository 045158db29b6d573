#include "worker/ddp/hooks/bucket_cache.h"

#include <stdexcept>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "worker/ddp/tensors/tensors.h"

namespace ddp {

void move_to(NamedTensors& known, const std::string& name, const at::Tensor& place,
             const std::string& what) {
  at::Tensor& current = known[name];
  if (!current.defined()) {
    place.zero_();
  } else if (current.numel() == place.numel()) {
    place.copy_(current.view_as(place));
  } else {
    throw std::invalid_argument(fmt::format("{} of {} was kept as {}, but now it must be {}", what,
                                            name, describe(current), describe(place)));
  }
  current = place;
}

void copy_to(NamedTensors& copies, const std::string& prefix, const NamedTensors& known) {
  for (const auto& [name, tensor] : known) copies[prefix + name] = tensor.clone();
}

}  // namespace ddp
