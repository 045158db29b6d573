#include "common/log/log.h"

#include <array>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

namespace ddp::log {
namespace {

std::atomic<Level> current_level{Level::kWarning};

// Never destroyed, as the logger: lines may come from other objects' destructors.
std::string& program_name() {
  static auto* const name = new std::string("ddp");
  return *name;
}

spdlog::logger& logger() {
  static auto* const instance = [] {
    auto* const made = new spdlog::logger("", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_level(spdlog::level::trace);
    made->flush_on(spdlog::level::trace);
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %L %v");
    return made;
  }();
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

void init(std::string_view program) {
  program_name() = program;
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
  current_level = parsed.value_or(Level::kWarning);
  if (given != nullptr && !parsed)
    warning("{}='{}' is not a level; use {}", given->name, wanted, given->words);
}

bool enabled(Level level) {
  return level != Level::kOff && level >= current_level.load(std::memory_order_relaxed);
}

void write(Level level, std::string_view message) {
  if (!enabled(level)) return;
  // Passed as arguments, because they are no format strings.
  logger().log(static_cast<spdlog::level::level_enum>(level), "{} {}", program_name(),
               one_line(message));
}

}  // namespace ddp::log
