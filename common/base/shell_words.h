#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace ddp {

// Quotes the word so that a POSIX shell reads exactly these bytes (any but NUL). Words without
// special characters stay as they are; others are put in single quotes.
std::string shell_quote(std::string_view word);
// Quotes all words and joins them with spaces.
std::string shell_quote(const std::vector<std::string>& words);

// Splits a command into words as a shell does. Only quotes and backslashes have a meaning.
// kInvalidArgument if a quote is not closed.
Result<std::vector<std::string>> split_words(std::string_view text);

}  // namespace ddp
