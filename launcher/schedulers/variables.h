#pragma once

#include <optional>
#include <string>

#include "common/base/environment.h"
#include "common/base/result.h"

// How the readers of this folder read a variable.
namespace ddp::schedulers {

// Empty if it is not set.
std::string text_of(const GetEnvironment& environment, const char* name);

// Nothing if it is not set or empty. kInvalidArgument if it is no number from `lowest` on; the
// message names the variable.
Result<std::optional<int>> number_of(const GetEnvironment& environment, const char* name,
                                     int lowest = 0);

}  // namespace ddp::schedulers
