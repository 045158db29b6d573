#pragma once

#include "common/base/unique_fd.h"

namespace ddp::agent {

// Ports of this node for stores that its worker with rank 0 makes (wire::RoundStart::store_port), a
// new one for each round. A port is held by a socket that is bound to it and does not listen. Linux
// then does not hand the port out as a free one, but lets a program that sets SO_REUSEADDR, as
// PyTorch's server does, bind and listen there. The socket is not inherited.
class StorePort {
 public:
  // The port that is reserved for the next round; 0 if the system gives none.
  int next();
  // A round has begun whose store is at `port` of this node. The port is held until the next round.
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
