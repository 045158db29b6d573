#pragma once

#include <cstdlib>
#include <string_view>

namespace ddp::test {

// Whether DDP_TEST_FULL=1 asks for all combinations. Without it, tests whose cases are products of
// several lists run each pair of entries somewhere, but not each product (tests/README.md).
inline bool full_matrix() {
  const char* value = std::getenv("DDP_TEST_FULL");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace ddp::test
