#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

// Log lines of all programs, on standard error:
//   2026-01-31 12:00:00.123 W ddp-agent[node 1] message
// Each line is one write, so that programs that share a terminal do not mix within a line. Any
// thread may write. The first line sets up spdlog, which does the work.
namespace ddp::log {

enum class Level { kTrace, kDebug, kInfo, kWarning, kError, kOff };

// Names the program and its role, which tells several of one program apart ("node 1"; may be
// empty). The level comes from DDP_LOG_LEVEL (trace, debug, info, warning, error, off). If that is
// unset, it comes from LOGLEVEL, as torchrun's does (Python's names DEBUG, INFO, WARNING, ..., in
// any case). If both are unset, it is `fallback`. If the variable does not hold a level, it is
// `fallback`, too, and a warning says so. Call before other threads run. Calling again changes the
// names.
void init(std::string_view program, std::string_view role, Level fallback = Level::kWarning);
void set_role(std::string_view role);

bool enabled(Level level);
// One line; newlines in `message` become "\n" so that one line stays one.
void write(Level level, std::string_view message);

template <typename... Args>
void write_formatted(Level level, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(level)) write(level, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write_formatted(Level::kDebug, format, std::forward<Args>(args)...);
}
template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write_formatted(Level::kInfo, format, std::forward<Args>(args)...);
}
template <typename... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write_formatted(Level::kWarning, format, std::forward<Args>(args)...);
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write_formatted(Level::kError, format, std::forward<Args>(args)...);
}

}  // namespace ddp::log
