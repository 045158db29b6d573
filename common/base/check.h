#pragma once

#include <string_view>

#include <fmt/format.h>

namespace ddp {

// Prints the broken invariant to standard error and aborts. Async-signal-unsafe; any thread.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               std::string_view message);

}  // namespace ddp

// Checks an invariant of our own code, in every build: DDP_CHECK(a < b, "a={} b={}", a, b). Never
// use it for input from outside: return a Result.
#define DDP_CHECK(condition, ...)                                                         \
  do {                                                                                    \
    if (!(condition)) [[unlikely]] {                                                      \
      ::ddp::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
    }                                                                                     \
  } while (false)
