#include "worker/checkpoint/share_plan.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include "common/base/check.h"

namespace ddp::checkpoint {
namespace {

// Items that stay together.
struct Bundle {
  std::uint64_t bytes = 0;
  std::string_view name;  // The lowest of its items' names.
  bool pinned = false;
  std::vector<std::size_t> items;
};

std::vector<Bundle> bundles_of(std::span<const ShareItem> items) {
  std::vector<Bundle> bundles;
  std::map<std::uint64_t, std::size_t> by_storage;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const ShareItem& item = items[i];
    std::size_t at = bundles.size();
    if (item.storage != 0) at = by_storage.emplace(item.storage, at).first->second;
    if (at == bundles.size()) bundles.emplace_back().name = item.name;
    Bundle& bundle = bundles[at];
    bundle.bytes += item.bytes;
    bundle.name = std::min(bundle.name, std::string_view(item.name));
    bundle.pinned = bundle.pinned || item.pinned;
    bundle.items.push_back(i);
  }
  return bundles;
}

}  // namespace

std::vector<Rank> deal_shares(std::span<const ShareItem> items, int world_size) {
  DDP_CHECK(world_size >= 1, "a world of {}", world_size);
  std::vector<Bundle> bundles = bundles_of(items);
  std::sort(bundles.begin(), bundles.end(), [](const Bundle& a, const Bundle& b) {
    return std::tuple(!a.pinned, ~a.bytes, a.name) < std::tuple(!b.pinned, ~b.bytes, b.name);
  });
  std::vector<std::uint64_t> load(static_cast<std::size_t>(world_size), 0);
  std::vector<Rank> owners(items.size(), 0);
  for (const Bundle& bundle : bundles) {
    const auto least = bundle.pinned ? load.begin() : std::min_element(load.begin(), load.end());
    *least += bundle.bytes;
    for (const std::size_t item : bundle.items) {
      owners[item] = static_cast<Rank>(least - load.begin());
    }
  }
  return owners;
}

}  // namespace ddp::checkpoint
