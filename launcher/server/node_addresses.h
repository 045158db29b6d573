#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "common/base/clock.h"

namespace ddp::server {

// From where the nodes of the daemon's jobs connect: what cannot prove anything, PyTorch's store
// clients, is let in from there only. An address stays for a while when its last agent has gone,
// since workers outlive a connection that is lost and made again. Not thread safe.
class NodeAddresses {
 public:
  explicit NodeAddresses(Duration memory) : memory_(memory) {}

  // An agent of this numeric address has come, or has gone. As often gone as come.
  void add(const std::string& address) { ++uses_[address].agents; }
  void remove(const std::string& address, TimePoint now);
  bool contains(const std::string& address, TimePoint now) const;

 private:
  struct Use {
    std::size_t agents = 0;
    TimePoint left{};  // When the last of them went.
  };
  bool is_over(const Use& use, TimePoint now) const {
    return use.agents == 0 && now - use.left > memory_;
  }

  Duration memory_;
  std::map<std::string, Use> uses_;
};

// Whether a numeric address is this machine's own, as seen by itself.
bool is_loopback(const std::string& address);

}  // namespace ddp::server
