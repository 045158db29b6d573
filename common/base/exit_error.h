#pragma once

#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "common/base/result.h"

// Errors that end ddp-run. The code is the exit status, and the message is the line that is
// printed.
namespace ddp {

// Category whose values are exit statuses.
const std::error_category& exit_category();

template <typename... Args>
Error exit_error(int exit_code, fmt::format_string<Args...> format, Args&&... args) {
  return Error{std::error_code(exit_code, exit_category()),
               fmt::format(format, std::forward<Args>(args)...)};
}

// The status an error asks for; kExitInternal if it carries none.
int exit_code_of(const Error& error);

}  // namespace ddp
