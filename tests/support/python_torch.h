#pragma once

#include "tests/support/process.h"

namespace ddp::test {

// The distribution's interpreter: another one that comes first in PATH has no torch.
inline constexpr const char* kPython = "/usr/bin/python3";

inline bool has_torch() {
  static const bool has = run({kPython, "-c", "import torch.distributed"}).status == 0;
  return has;
}

}  // namespace ddp::test
