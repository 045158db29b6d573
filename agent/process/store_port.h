#pragma once

#include "common/base/unique_fd.h"

namespace ddp::agent {

// Ports of this node for stores that its worker with rank 0 makes (wire::RoundStart::store_port),
// another one for each round. A port is held by a socket that is bound to it and does not listen:
// Linux gives it to nobody who asks for any free port, and still lets a program that sets
// SO_REUSEADDR, as PyTorch's server does, bind and listen there. The socket is not inherited.
class StorePort {
 public:
  // The one that is reserved for the next round; 0 if the system gives none.
  int next();
  // A round has begun in which the store is at `port` of this node: held until the round after.
  void use(int port);

 private:
  struct Reserved {
    UniqueFd socket;
    int port = 0;
  };
  static Reserved reserve();

  Reserved next_;
  Reserved used_;
};

}  // namespace ddp::agent
