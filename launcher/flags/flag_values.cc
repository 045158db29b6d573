#include "launcher/flags/flag_values.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstring>

#include "common/base/exit_error.h"
#include "common/base/parse_number.h"
#include "common/config/job_rules.h"
#include "launcher/machine/accelerators.h"

namespace ddp::flags {
namespace {

constexpr int kMaxWorkers = 4096;
constexpr double kMaxSeconds = 1e9;

template <typename... Args>
Error invalid(fmt::format_string<Args...> format, Args&&... args) {
  return exit_error(kExitInvalidValue, format, std::forward<Args>(args)...);
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\v\f\r";
  const auto first = std::min(text.find_first_not_of(kBlanks), text.size());
  text.remove_prefix(first);
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

// The parts between commas, with the empty ones. An empty text has no parts.
std::vector<std::string_view> split_at_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  if (text.empty()) return parts;
  for (;;) {
    const auto comma = std::min(text.find(','), text.size());
    parts.push_back(text.substr(0, comma));
    if (comma == text.size()) return parts;
    text.remove_prefix(comma + 1);
  }
}

// 0 if there is no signal of this name.
int signal_number(std::string_view text) {
  if (const auto number = parse_whole_number<int>(text))
    return *number >= 1 && *number <= SIGRTMAX ? *number : 0;
  std::string name(text);
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (name.starts_with("SIG")) name.erase(0, 3);
  for (int number = 1; number < SIGRTMIN; ++number) {
    const char* abbreviation = ::sigabbrev_np(number);
    if (abbreviation != nullptr && name == abbreviation) return number;
  }
  return 0;
}

}  // namespace

Result<int> parse_integer(std::string_view text, int minimum, int maximum) {
  const auto value = parse_whole_number(text, minimum, maximum);
  if (value) return *value;
  return invalid("not a whole number from {} to {}", minimum, maximum);
}

Result<bool> parse_boolean(std::string_view text) {
  std::string word(text);
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const std::string_view yes : {"1", "true", "t", "yes", "y", "on"}) {
    if (word == yes) return true;
  }
  for (const std::string_view no : {"0", "false", "f", "no", "n", "off"}) {
    if (word == no) return false;
  }
  return invalid("neither true nor false");
}

Result<std::int64_t> parse_seconds(std::string_view text, bool zero_allowed) {
  text = trimmed(text);
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool number =
      error == std::errc() && rest == text.data() + text.size() && std::isfinite(value);
  if (!number || value < 0 || value > kMaxSeconds || (value == 0 && !zero_allowed)) {
    return invalid("not a number of seconds {}; write for example 60 or 0.5",
                   zero_allowed ? "from 0" : "above 0");
  }
  const auto milliseconds = static_cast<std::int64_t>(std::llround(value * 1000));
  return value > 0 && milliseconds == 0 ? 1 : milliseconds;
}

Result<std::int64_t> check_lease(std::int64_t milliseconds) {
  if (milliseconds >= config::kLeastLeaseMs && milliseconds <= config::kLongestLeaseMs)
    return milliseconds;
  return invalid("not from {} to {} seconds; write for example 5 or 1.5",
                 static_cast<double>(config::kLeastLeaseMs) / 1'000,
                 config::kLongestLeaseMs / 1'000);
}

Result<std::int64_t> parse_lease(std::string_view text) {
  const auto limit = parse_seconds(text, true);
  return limit ? check_lease(*limit) : limit;
}

Result<double> parse_ratio(std::string_view text) {
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && rest == text.data() + text.size() && value >= config::kLeastRatio &&
      value <= config::kLargestRatio)
    return value;
  return invalid("not a number from {} to {}; write for example 1.5", config::kLeastRatio,
                 config::kLargestRatio);
}

Result<std::pair<int, int>> parse_node_range(std::string_view text) {
  const auto colon = text.find(':');
  const auto minimum = parse_integer(text.substr(0, colon), 1, config::kNodesLimit);
  const auto maximum = colon == std::string_view::npos
                           ? minimum
                           : parse_integer(text.substr(colon + 1), 1, config::kNodesLimit);
  if (!minimum || !maximum) {
    return invalid("not a number of nodes; write N or MIN:MAX, for example 2 or 2:4");
  }
  if (*minimum > *maximum) {
    return invalid("the minimum {} is larger than the maximum {}; write MIN:MAX, for example {}:{}",
                   *minimum, *maximum, *maximum, *minimum);
  }
  return std::pair(*minimum, *maximum);
}

Result<ProcessCount> parse_process_count(std::string_view text) {
  if (text == "auto") return ProcessCount{ProcessCount::Kind::kAuto, 0};
  if (text == "cpu") return ProcessCount{ProcessCount::Kind::kCpu, 0};
  if (machine::find_accelerator(text) != nullptr)
    return ProcessCount{ProcessCount::Kind::kAccelerator, 0, std::string(text)};
  const auto number = parse_integer(text, 1, kMaxWorkers);
  if (!number) {
    std::string names = "auto, cpu";
    for (const machine::Accelerator& kind : machine::accelerators())
      names +=
          fmt::format("{}{}", &kind == &machine::accelerators().back() ? " or " : ", ", kind.name);
    return invalid(
        "neither a number of workers from 1 to {} nor {}; for devices of another kind, write their "
        "number; --devices chooses devices, for example 2,4",
        kMaxWorkers, names);
  }
  return ProcessCount{ProcessCount::Kind::kNumber, *number};
}

Result<std::vector<std::string>> parse_devices(std::string_view text) {
  std::vector<std::string> devices;
  for (const std::string_view part : split_at_commas(text)) {
    const auto number = parse_integer(part, 0, kMaxWorkers);
    if (!number && !part.starts_with("GPU-") && !part.starts_with("MIG-")) {
      return invalid("'{}' is not a CUDA device; write numbers, for example 2,4,7", part);
    }
    // 04 is 4.
    std::string device = number ? std::to_string(*number) : std::string(part);
    if (std::find(devices.begin(), devices.end(), device) != devices.end())
      return invalid("device {} is named twice; name each once", device);
    devices.push_back(std::move(device));
  }
  if (devices.empty()) return invalid("no device is named; write for example 2,4,7");
  return devices;
}

Result<int> parse_signal(std::string_view text) {
  const int number = signal_number(text);
  if (number == 0) {
    return invalid(
        "'{}' is not a signal; write a name or a number, for example USR1, SIGUSR1 or 10", text);
  }
  if (number == SIGKILL || number == SIGSTOP)
    return invalid("no program can handle '{}'; choose another signal", text);
  if (number == SIGCHLD)
    return invalid("'{}' comes whenever a child process ends; choose another signal", text);
  return number;
}

Result<Signals> parse_signals(std::string_view text) {
  Signals signals;
  for (const std::string_view part : split_at_commas(text)) {
    const std::string_view name = trimmed(part);
    if (signal_number(name) == 0) {
      signals.unknown.emplace_back(name);
      continue;
    }
    const auto number = parse_signal(name);
    if (!number) return number.error();
    std::vector<int>& known = signals.numbers;
    if (std::find(known.begin(), known.end(), *number) == known.end()) known.push_back(*number);
  }
  return signals;
}

Result<std::string> parse_word(std::string_view text, std::initializer_list<const char*> words) {
  std::string list;
  for (const char* const* word = words.begin(); word != words.end(); ++word) {
    if (text == *word) return std::string(text);
    if (!list.empty()) list += word + 1 == words.end() ? " and " : ", ";
    list += *word;
  }
  return words.size() == 1 ? invalid("the only value is {}", list)
                           : invalid("the values are {}", list);
}

Result<HostPort> parse_endpoint(std::string_view text, int default_port) {
  auto endpoint = parse_host_port(trimmed(text), 0, default_port);
  if (endpoint) return endpoint;
  return invalid("{}; write HOST or HOST:PORT, for example node0:29400 or [fd00::1]:29400",
                 endpoint.error().message);
}

Result<std::string> parse_host(std::string_view text) {
  auto endpoint = parse_host_port(trimmed(text), 0, 0);
  if (!endpoint) {
    return invalid("{}; write a host name or address, for example node0 or fd00::1",
                   endpoint.error().message);
  }
  if (endpoint->port != 0)
    return invalid("not a host name or address; the port goes into --master-port");
  return std::move(endpoint->host);
}

Result<std::vector<std::pair<std::string, std::string>>> parse_pairs(std::string_view text) {
  constexpr std::string_view kRight = "write for example join_timeout=60,is_host=true";
  std::vector<std::pair<std::string, std::string>> pairs;
  if (trimmed(text).empty()) return pairs;
  for (const std::string_view part : split_at_commas(text)) {
    const auto equals = part.find('=');
    const std::string_view key = trimmed(part.substr(0, equals));
    if (equals == std::string_view::npos || key.empty())
      return invalid("'{}' is not KEY=VALUE; {}", trimmed(part), kRight);
    const std::string_view value = trimmed(part.substr(equals + 1));
    if (value.empty()) return invalid("'{}' has no value; {}", key, kRight);
    pairs.emplace_back(key, value);
  }
  return pairs;
}

}  // namespace ddp::flags
