#pragma once

#include <cstring>
#include <string>

namespace ddp {

// "SIGKILL" for 9; "signal 99" for a number without a name. For messages; takes any int.
inline std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

}  // namespace ddp
