#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "common/base/clock.h"

namespace ddp::server {

// The addresses from which the nodes of the daemon's jobs connect. PyTorch's store clients, which
// cannot prove that they know the token, are let in only from these. An address stays for a while
// after its last agent is gone, since workers outlive a connection that is lost and restored. Not
// thread safe.
class NodeAddresses {
 public:
  explicit NodeAddresses(Duration memory) : memory_(memory) {}

  // An agent with this numeric address has come (add) or is gone (remove). Each add() needs one
  // remove().
  void add(const std::string& address) { ++uses_[address].agents; }
  void remove(const std::string& address, TimePoint now);
  bool contains(const std::string& address, TimePoint now) const;

 private:
  struct Use {
    std::size_t agents = 0;
    TimePoint left{};  // When the last agent left.
  };
  bool is_over(const Use& use, TimePoint now) const {
    return use.agents == 0 && now - use.left > memory_;
  }

  Duration memory_;
  std::map<std::string, Use> uses_;
};

}  // namespace ddp::server
