#include "common/log/log.h"

#include <array>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

namespace ddp::log {
namespace {

struct State {
  std::mutex mutex;
  std::string program = "ddp";
  std::string role;
  std::shared_ptr<spdlog::logger> logger;  // Absent until the first line; guarded by mutex.
  std::atomic<Level> level{Level::kWarning};
};

// Never destroyed: lines may come from other objects' destructors.
State& state() {
  static auto* const instance = new State;
  return *instance;
}

struct LevelName {
  std::string_view name;
  Level level;
};
using LevelNames = std::span<const LevelName>;
constexpr std::array<LevelName, 7> kLevelNames{{{"trace", Level::kTrace},
                                                {"debug", Level::kDebug},
                                                {"info", Level::kInfo},
                                                {"warning", Level::kWarning},
                                                {"warn", Level::kWarning},
                                                {"error", Level::kError},
                                                {"off", Level::kOff}}};

// Python's. NOTSET leaves the level to the root logger, whose level is WARNING.
constexpr std::array<LevelName, 8> kPythonLevelNames{{{"DEBUG", Level::kDebug},
                                                      {"INFO", Level::kInfo},
                                                      {"WARNING", Level::kWarning},
                                                      {"WARN", Level::kWarning},
                                                      {"NOTSET", Level::kWarning},
                                                      {"ERROR", Level::kError},
                                                      {"CRITICAL", Level::kOff},
                                                      {"FATAL", Level::kOff}}};

// A variable that may set the level, and the words that it takes.
struct LevelVariable {
  const char* name;
  LevelNames levels;
  const char* words;
  bool any_case;
};
constexpr std::array<LevelVariable, 2> kLevelVariables{
    {{"DDP_LOG_LEVEL", kLevelNames, "trace, debug, info, warning, error or off", false},
     {"LOGLEVEL", kPythonLevelNames, "DEBUG, INFO, WARNING, ERROR or CRITICAL", true}}};

std::optional<Level> parse_level(const LevelVariable& variable, std::string text) {
  if (variable.any_case) {
    for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  for (const LevelName& entry : variable.levels) {
    if (entry.name == text) return entry.level;
  }
  return std::nullopt;
}

spdlog::level::level_enum spdlog_level(Level level) {
  switch (level) {
    case Level::kTrace:
      return spdlog::level::trace;
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
    case Level::kOff:
      break;
  }
  return spdlog::level::off;
}

// A percent sign begins a flag of spdlog's pattern language.
std::string escape_pattern(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c;
    if (c == '%') out += c;
  }
  return out;
}

void apply_pattern(State& s) {
  std::string who = escape_pattern(s.program);
  if (!s.role.empty()) who += "[" + escape_pattern(s.role) + "]";
  s.logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %L " + who + " %v");
}

std::string one_line(std::string_view message) {
  while (message.ends_with('\n')) message.remove_suffix(1);
  std::string out;
  for (const char c : message) {
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

void init(std::string_view program, std::string_view role, Level fallback) {
  State& s = state();
  const LevelVariable* given = nullptr;
  std::string wanted;
  for (const LevelVariable& variable : kLevelVariables) {
    const char* const value = std::getenv(variable.name);  // NOLINT(concurrency-mt-unsafe)
    if (value == nullptr || *value == '\0') continue;
    given = &variable;
    wanted = value;
    break;
  }
  const auto parsed = given != nullptr ? parse_level(*given, wanted) : std::nullopt;
  s.level = parsed.value_or(fallback);
  {
    const std::lock_guard lock(s.mutex);
    s.program = program;
    s.role = role;
    if (s.logger) apply_pattern(s);
  }
  if (given != nullptr && !parsed)
    warning("{}='{}' is not a level; use {}", given->name, wanted, given->words);
}

void set_role(std::string_view role) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.role = role;
  if (s.logger) apply_pattern(s);
}

bool enabled(Level level) {
  return level != Level::kOff && level >= state().level.load(std::memory_order_relaxed);
}

void write(Level level, std::string_view message) {
  if (!enabled(level)) return;
  State& s = state();
  std::shared_ptr<spdlog::logger> logger;
  {
    const std::lock_guard lock(s.mutex);
    if (!s.logger) {
      s.logger = std::make_shared<spdlog::logger>(
          s.program, std::make_shared<spdlog::sinks::stderr_sink_mt>());
      s.logger->set_level(spdlog::level::trace);
      s.logger->flush_on(spdlog::level::trace);
      apply_pattern(s);
    }
    logger = s.logger;
  }
  // Passed as an argument, because the message is not a format string.
  logger->log(spdlog_level(level), "{}", one_line(message));
}

}  // namespace ddp::log
