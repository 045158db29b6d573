#pragma once

#include <string>

namespace ddp::agent {

// Whether the PyTorch whose package (the folder of torch/__init__.py) this is asks for libuv where
// it connects to a launcher's store, and was built without it, so that it cannot. False where that
// is not certain.
bool lacks_libuv(const std::string& package);

}  // namespace ddp::agent
