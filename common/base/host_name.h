#pragma once

#include <string>

namespace ddp {

// This machine's name (gethostname), "localhost" if it has none.
std::string host_name();

}  // namespace ddp
