#include "launcher/flags/config_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <set>
#include <vector>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/base/exit_error.h"
#include "launcher/flags/flag_table.h"

namespace ddp::flags {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxConfigBytes = 1 << 20;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

template <typename... Args>
Error wrong_config(const std::string& file, fmt::format_string<Args...> format, Args&&... args) {
  return exit_error(kExitInvalidValue, "--config {}: {}", file,
                    fmt::format(format, std::forward<Args>(args)...));
}

// The value as on a command line; nothing for types that have no such form.
std::optional<std::string> as_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return value.dump();
  if (value.is_boolean()) return std::string(value.get<bool>() ? "true" : "false");
  return std::nullopt;
}

// Like as_text(), but also takes a list or an object and gives each of its elements.
std::optional<std::vector<std::string>> as_values(const Json& value) {
  std::vector<std::string> values;
  if (!value.is_structured()) {
    auto text = as_text(value);
    if (!text) return std::nullopt;
    values.push_back(std::move(*text));
    return values;
  }
  for (const auto& [key, item] : value.items()) {
    auto text = as_text(item);
    if (!text) return std::nullopt;
    values.push_back(value.is_object() ? key + "=" + *text : std::move(*text));
  }
  return values;
}

Error unknown_key(const std::string& file, const std::string& key, const std::string& name) {
  const std::string_view nearest = nearest_flag(name);
  if (nearest.empty())
    return wrong_config(file, "\"{}\": there is no such flag; --help lists them all", key);
  return wrong_config(file,
                      "\"{}\": there is no such flag; {} is the nearest, --help lists them all",
                      key, nearest);
}

Result<void> take_flag(CommandLine& line, const std::string& file, const Flag& flag,
                       const std::string& key, const Json& value) {
  const auto is_missing = [&] {
    return wrong_config(file, "\"{}\": the value is missing; write {} as a text or a number", key,
                        flag.placeholder);
  };
  std::optional<std::vector<std::string>> values;
  if (!flag.takes_value()) {
    if (!value.is_boolean())
      return wrong_config(file, "\"{}\": write true or false, without quotes", key);
    if (value.get<bool>()) values.emplace();
  } else {
    if (!value.is_boolean()) values = as_values(value);
    if (!values) return is_missing();
    if (flag.adds_up && values->empty()) return {};
  }
  if (!values || line.is_settled(flag.name)) return {};
  std::string text = fmt::format("{}", fmt::join(*values, ","));
  std::string shown = flag.takes_value() ? fmt::format("{}: {} {}", file, key, text)
                                         : fmt::format("{}: {}", file, key);
  if (!line.take(flag, GivenFlag{std::move(text), std::move(shown), std::move(*values)}))
    return is_missing();
  return {};
}

Result<void> take_program(CommandLine& line, const std::string& file, const Json& config) {
  const auto program = config.find("program");
  const auto arguments = config.find("arguments");
  if (program != config.end() && !program->is_string())
    return wrong_config(file, "\"program\": write it as a text");
  std::vector<std::string> given;
  if (arguments != config.end()) {
    if (!arguments->is_array()) {
      return wrong_config(file, "\"arguments\": write a list, for example [\"--lr\", \"1\"]");
    }
    for (const Json& argument : *arguments) {
      auto text = as_text(argument);
      if (!text) return wrong_config(file, "\"arguments\": each one is a text or a number");
      given.push_back(std::move(*text));
    }
    if (program == config.end())
      return wrong_config(file, "\"arguments\" without \"program\": name the program, too");
  }
  if (line.has_program || program == config.end()) return {};
  line.has_program = true;
  line.program = program->get<std::string>();
  line.arguments = std::move(given);
  return {};
}

}  // namespace

Result<std::string> read_config_file(const std::string& path) {
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "re"));
  if (!file) {
    return exit_error(kExitInvalidValue, "cannot be read: {}",
                      std::generic_category().message(errno));
  }
  std::string text(kMaxConfigBytes + 1, '\0');
  errno = 0;
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) {
    return exit_error(kExitInvalidValue, "cannot be read: {}",
                      std::generic_category().message(errno));
  }
  if (text.size() > kMaxConfigBytes)
    return exit_error(kExitInvalidValue, "is larger than {} bytes", kMaxConfigBytes);
  return text;
}

Result<void> fill_from_config(CommandLine& line, const std::string& file, std::string_view json) {
  Json config;
  try {
    config = Json::parse(json, nullptr, true, /*ignore_comments=*/true);
  } catch (const nlohmann::json::exception& error) {
    // what() is "[json.exception.parse_error.101] parse error at line 1, column 2: ...". The prefix
    // in brackets is cut off.
    const std::string_view what = error.what();
    return wrong_config(file, "is not JSON: {}",
                        what.substr(std::min(what.size(), what.find("] ") + 2)));
  }
  if (!config.is_object())
    return wrong_config(file, "is not a JSON object; write for example {{\"nnodes\": 2}}");
  std::set<std::string> seen;
  for (const auto& [key, value] : config.items()) {
    if (key == "program" || key == "arguments") continue;
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', '-');
    const Flag* flag = find_flag(name);
    if (flag == nullptr || flag->of_line_only() || name == "config")
      return unknown_key(file, key, name);
    if (!seen.insert(name).second)
      return wrong_config(file, "\"{}\" is given twice; write it once", name);
    const auto taken = take_flag(line, file, *flag, key, value);
    if (!taken) return taken;
  }
  return take_program(line, file, config);
}

}  // namespace ddp::flags
