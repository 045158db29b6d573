#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace ddp::hosts {

// The word so that a POSIX shell reads exactly these bytes (any but NUL): as it is where no
// character means anything to a shell, else in single quotes.
std::string shell_quote(std::string_view word);
// All of them with spaces between.
std::string shell_quote(const std::vector<std::string>& words);

// Cuts a command as a shell would that knows quotes and backslashes and nothing else.
// kInvalidArgument where a quote is not closed.
Result<std::vector<std::string>> split_words(std::string_view text);

}  // namespace ddp::hosts
