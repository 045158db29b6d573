#pragma once

#include <fstream>
#include <string>

#include "tests/support/process.h"

namespace ddp::test {

// The distribution's interpreter: another Python earlier in PATH might have no torch.
inline constexpr const char* kPython = "/usr/bin/python3";

inline bool has_torch() {
  static const bool has = run({kPython, "-c", "import torch.distributed"}).status == 0;
  return has;
}

// Whether its release speaks the legacy dialect. Does not run Python.
inline bool torch_is_legacy() {
  std::ifstream file("/usr/lib/python3/dist-packages/torch/version.py");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("__version__ = '1.")) return true;
  }
  return false;
}

// Put this at the beginning of a Python program: its TCPStores then do not use libuv, which is the
// default of Debian's newer builds although they lack it. The bytes on the wire are the same.
inline constexpr const char* kWithoutLibuv = R"(
import torch.distributed
def do_without_libuv(kind):
    if "use_libuv" not in kind.__init__.__doc__: return
    init = kind.__init__
    kind.__init__ = lambda self, *args, **named: init(self, *args[:8], **{**named, "use_libuv": False})
do_without_libuv(torch.distributed.TCPStore)
)";

}  // namespace ddp::test
