#pragma once

#include <string>

namespace ddp::agent {

// Whether this PyTorch cannot connect to a launcher's store, because it asks for libuv and was
// built without it. `package` is the folder of torch/__init__.py. False if that is not certain.
bool lacks_libuv(const std::string& package);

}  // namespace ddp::agent
