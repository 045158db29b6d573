#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "launcher/flags/flags.h"

namespace ddp::run {

// The body of a page of the daemon. Blocks for at most `limit`, plus the look-up of the name.
// Errors are exit_error: kExitJoinTimeout if nothing answers, kExitPortInUse if what answers is not
// a rendezvous.
Result<std::string> http_get(const HostPort& endpoint, std::string_view path,
                             std::chrono::milliseconds limit);

}  // namespace ddp::run
