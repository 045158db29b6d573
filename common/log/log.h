#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

// Log lines of all programs, on standard error:
//   2026-01-31 12:00:00.123 W ddp-run message
// Each line is one write, so that programs that share a terminal do not mix within a line. Any
// thread may write. The first line sets up spdlog, which does the work.
namespace ddp::log {

// In spdlog's order.
enum class Level { kTrace, kDebug, kInfo, kWarning, kError, kOff };

// Names the program. DDP_LOG_LEVEL (trace, debug, info, warning, error, off) sets the level. If it
// is unset, LOGLEVEL does, as torchrun's (Python's names DEBUG, INFO, WARNING, ..., in any case).
// If both are unset, or if what is there is not a level, which a warning says, it is kWarning. Call
// before other threads run.
void init(std::string_view program);

bool enabled(Level level);
// One line; newlines in `message` become "\n" so that one line stays one.
void write(Level level, std::string_view message);

template <typename... Args>
void write_formatted(Level level, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(level)) write(level, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write_formatted(Level::kInfo, format, std::forward<Args>(args)...);
}
template <typename... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write_formatted(Level::kWarning, format, std::forward<Args>(args)...);
}

}  // namespace ddp::log
