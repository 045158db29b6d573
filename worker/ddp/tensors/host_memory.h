#pragma once

#include <cstdint>

#include "common/base/result.h"

namespace ddp {

// Checks that this process can take `bytes` more memory while each other worker of the node takes
// as much. Looks at what the kernel calls available and at the limits of its control groups. kIo
// with the two figures if not. Only a forecast: if the system does not say, the memory is assumed
// to be there. Any thread.
Result<void> check_host_memory(std::uint64_t bytes);

}  // namespace ddp
