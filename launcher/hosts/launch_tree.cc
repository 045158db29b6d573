#include "launcher/hosts/launch_tree.h"

#include <algorithm>

namespace ddp::hosts {

std::vector<std::vector<NodePlace>> split_for_launch(const std::vector<NodePlace>& places,
                                                     std::size_t fan_out) {
  const std::size_t count = std::min(places.size(), fan_out);
  std::vector<std::vector<NodePlace>> groups;
  auto next = places.begin();
  for (std::size_t i = 0; i < count; ++i) {
    // The first groups take the remainder.
    const std::size_t size = places.size() / count + (i < places.size() % count ? 1 : 0);
    const auto end = next + static_cast<std::ptrdiff_t>(size);
    groups.emplace_back(next, end);
    next = end;
  }
  return groups;
}

}  // namespace ddp::hosts
