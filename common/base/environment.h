#pragma once

#include <functional>

namespace ddp {

// getenv, or a test's substitute.
using GetEnvironment = std::function<const char*(const char* name)>;

}  // namespace ddp
