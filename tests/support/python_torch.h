#pragma once

#include <fstream>
#include <string>

#include "tests/support/process.h"

namespace ddp::test {

// The distribution's interpreter: another one that comes first in PATH has no torch.
inline constexpr const char* kPython = "/usr/bin/python3";

inline bool has_torch() {
  static const bool has = run({kPython, "-c", "import torch.distributed"}).status == 0;
  return has;
}

// Whether its release is one of those that speak the legacy dialect. Python need not run for this.
inline bool torch_is_legacy() {
  std::ifstream file("/usr/lib/python3/dist-packages/torch/version.py");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("__version__ = '1.")) return true;
  }
  return false;
}

// At the beginning of a Python program: TCPStores that it makes do without libuv, which Debian's
// newer builds ask for and do not have. On the wire there is no difference.
inline constexpr const char* kWithoutLibuv = R"(
import torch.distributed
def do_without_libuv(kind):
    if "use_libuv" not in kind.__init__.__doc__: return
    init = kind.__init__
    kind.__init__ = lambda self, *args, **named: init(self, *args[:8], **{**named, "use_libuv": False})
do_without_libuv(torch.distributed.TCPStore)
)";

}  // namespace ddp::test
