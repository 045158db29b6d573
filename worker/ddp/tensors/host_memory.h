#pragma once

#include <cstdint>

#include "common/base/result.h"

namespace ddp {

// Whether this process can take so much more memory, together with the node's other workers, who
// are asked the same at the same time: what the kernel calls available, and what its control groups
// leave. kIo with the two figures if not. Only a forecast; a system that does not say is believed
// to have enough. Any thread.
Result<void> check_host_memory(std::uint64_t bytes);

}  // namespace ddp
