#pragma once

#include <string_view>

#include <fmt/format.h>

namespace ddp {

// Prints the broken invariant to standard error and aborts. Async-signal-unsafe; any thread.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               std::string_view message);

}  // namespace ddp

// A broken invariant of our own code, on in every build: DDP_CHECK(a < b, "a={} b={}", a, b).
// Input from outside is never checked with it: that is a Result.
#define DDP_CHECK(condition, ...)                                                         \
  do {                                                                                    \
    if (!(condition)) [[unlikely]] {                                                      \
      ::ddp::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
    }                                                                                     \
  } while (false)
