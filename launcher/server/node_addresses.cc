#include "launcher/server/node_addresses.h"

namespace ddp::server {

void NodeAddresses::remove(const std::string& address, TimePoint now) {
  const auto found = uses_.find(address);
  if (found == uses_.end() || found->second.agents == 0) return;
  --found->second.agents;
  found->second.left = now;
  std::erase_if(uses_, [&](const auto& entry) { return is_over(entry.second, now); });
}

bool NodeAddresses::contains(const std::string& address, TimePoint now) const {
  const auto found = uses_.find(address);
  return found != uses_.end() && !is_over(found->second, now);
}

}  // namespace ddp::server
