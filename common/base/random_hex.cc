#include "common/base/random_hex.h"

#include <sys/random.h>

#include "common/base/check.h"

namespace ddp {

std::string random_hex(std::size_t bytes) {
  std::string text;
  text.reserve(2 * bytes);  // So that no part of a secret stays in freed memory.
  for (std::size_t i = 0; i < bytes; ++i) {
    unsigned char byte = 0;
    DDP_CHECK(::getrandom(&byte, 1, 0) == 1, "getrandom failed");
    text += fmt::format("{:02x}", byte);
  }
  return text;
}

}  // namespace ddp
