#pragma once

#include <string>

namespace ddp {

// Seconds, rounded up, as "0:41" or "1:02:06"; "?" if there is no such time.
std::string duration_text(double seconds);

}  // namespace ddp
