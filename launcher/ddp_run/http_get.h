#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "launcher/ddp_run/flags.h"

namespace ddp::run {

// The body of a page of the daemon. Blocks, for `limit` at most beyond the look-up of the name.
// Errors are exit_error: kExitJoinTimeout where nobody answers, kExitPortInUse where somebody does
// who is no rendezvous.
Result<std::string> http_get(const Endpoint& endpoint, std::string_view path,
                             std::chrono::milliseconds limit);

}  // namespace ddp::run
