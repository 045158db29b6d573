#include "launcher/flags/command_line.h"

#include <algorithm>
#include <cctype>

#include <boost/program_options.hpp>

#include "common/base/exit_error.h"
#include "common/base/parse_number.h"
#include "launcher/flags/flag_table.h"

namespace ddp::flags {
namespace {

namespace po = boost::program_options;

po::options_description describe_flags() {
  po::options_description description;
  for (const Flag& flag : all_flags()) {
    std::string name(flag.name);
    if (flag.letter != 0) name += fmt::format(",{}", flag.letter);
    auto* value = flag.placeholder.empty() ? po::value<std::string>()->zero_tokens()
                                           : po::value<std::string>();
    description.add_options()(name.c_str(), value, "");
  }
  return description;
}

// The one flag of torchrun that `name` is the beginning of; `name` itself if there is none, more
// than one, or a flag of just this name. A flag of ours must not make a short name ambiguous that
// torchrun accepts.
std::string_view torchruns_name(std::string_view name) {
  std::string_view found;
  for (const Flag& flag : all_flags()) {
    if (flag.name == name) return name;
    if (flag.own || !flag.name.starts_with(name)) continue;
    if (!found.empty()) return name;
    found = flag.name;
  }
  return found.empty() ? name : found;
}

// Runs before the library's own parsers and does what they cannot: the first argument that is not a
// flag, or what follows "--", ends the flags; underscores in names mean dashes, and a beginning of
// one of torchrun's names means that one; "--name=" has an empty value. Returning nothing hands
// over to the next parser. The library also calls it with the value of a flag as the only argument,
// so a single argument is left to the library.
std::vector<po::option> take_program_or_mend_name(std::vector<std::string>& rest) {
  std::string& first = rest.front();
  if (rest.size() > 1 && (!first.starts_with('-') || first == "-" || first == "--")) {
    if (first == "--") rest.erase(rest.begin());
    po::option program;
    program.value = std::move(rest);
    rest.clear();
    return {program};
  }
  if (first.starts_with("--")) {
    const auto name_end = std::min(first.find('='), first.size());
    std::replace(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(name_end), '_', '-');
    const std::string name = first.substr(2, name_end - 2);
    first.replace(2, name.size(), torchruns_name(name));
    if (first.find('=') + 1 == first.size()) {
      first.pop_back();
      po::option empty(first.substr(2), {""});
      empty.original_tokens.push_back(std::move(first));
      rest.erase(rest.begin());
      return {empty};
    }
  }
  return {};
}

Error unknown_flag(const std::string& shown) {
  std::string_view name =
      std::string_view(shown).substr(std::min(shown.find_first_not_of('-'), shown.size()));
  name = name.substr(0, name.find('='));
  if (const auto meant = flag_of_other_launchers(name); !meant.empty()) {
    return exit_error(kExitUsage, "{}: there is no such flag; write --{} N, --help lists them all",
                      shown, meant);
  }
  const std::string_view nearest =
      shown.starts_with("--") ? nearest_flag(name) : std::string_view();
  if (nearest.empty())
    return exit_error(kExitUsage, "{}: there is no such flag; --help lists them all", shown);
  return exit_error(kExitUsage,
                    "{}: there is no such flag; --{} is the nearest, --help lists them all", shown,
                    nearest);
}

Error ambiguous_flag(const std::string& shown) {
  std::string_view prefix(shown);
  prefix.remove_prefix(std::min(prefix.find_first_not_of('-'), prefix.size()));
  std::string candidates;
  for (const Flag& flag : all_flags()) {
    if (!flag.name.starts_with(prefix)) continue;
    candidates += fmt::format("{}--{}", candidates.empty() ? "" : ", ", flag.name);
  }
  return exit_error(kExitUsage, "{}: could be {}; write more of the name", shown, candidates);
}

Error value_missing(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  for (const Flag& flag : all_flags()) {
    if (flag.name != name && std::string_view(&flag.letter, 1) != name) continue;
    return exit_error(kExitUsage, "--{}: the value is missing; write --{} {}", flag.name, flag.name,
                      flag.placeholder);
  }
  return exit_error(kExitUsage, "--{}: the value is missing", name);
}

Error bad_syntax(const po::invalid_command_line_syntax& error) {
  const std::string shown = error.get_option_name();
  if (error.kind() == po::invalid_command_line_syntax::extra_parameter) {
    return exit_error(kExitUsage, "{}: takes no value; leave out what follows the =", shown);
  }
  return value_missing(shown);
}

Result<std::vector<po::option>> parse_options(const std::vector<std::string>& arguments) {
  const po::options_description description = describe_flags();
  try {
    return po::command_line_parser(arguments)
        .options(description)
        .style(po::command_line_style::unix_style)
        .extra_style_parser(take_program_or_mend_name)
        .run()
        .options;
  } catch (const po::unknown_option& error) {
    return unknown_flag(error.get_option_name());
  } catch (const po::ambiguous_option& error) {
    return ambiguous_flag(error.get_option_name());
  } catch (const po::invalid_command_line_syntax& error) {
    return bad_syntax(error);
  } catch (const po::error& error) {
    return exit_error(kExitUsage, "{}; --help lists all flags", error.what());
  }
}

// As in torchrun, a boolean in the environment is a number, and every number but 0 means true.
Result<bool> environment_switch(const std::string& shown, std::string_view value) {
  if (value.empty()) return false;
  if (const auto number = parse_whole_number<int>(value)) return *number != 0;
  return exit_error(kExitInvalidValue, "{}: neither 0 nor 1", shown);
}

Result<void> fill_from_environment(CommandLine& line, const GetEnvironment& environment) {
  for (const Flag& flag : all_flags()) {
    if (flag.of_line_only() || line.find(flag.name) != nullptr ||
        line.defaulted.contains(flag.name))
      continue;
    std::string variable = fmt::format("PET_{}", flag.name);
    for (char& c : variable)
      c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    const char* value = environment(variable.c_str());
    if (value == nullptr) continue;
    const std::string shown = fmt::format("{}={}", variable, value);
    if (flag.placeholder.empty()) {
      const auto on = environment_switch(shown, value);
      if (!on) return on.error();
      if (!*on) continue;
    }
    if (!line.take(flag, GivenFlag{value, shown, {value}})) {
      return exit_error(kExitUsage, "{}: the value is missing; write {}{}", shown, shown,
                        flag.placeholder);
    }
  }
  return {};
}

}  // namespace

const GivenFlag* CommandLine::find(std::string_view name) const {
  const auto found = flags.find(name);
  return found == flags.end() ? nullptr : &found->second;
}

bool CommandLine::take(const Flag& flag, GivenFlag given) {
  const std::string name(flag.name);
  if (flag.takes_value() && given.value.empty()) {
    if (flag.when_empty() == WhenEmpty::kMissing) return false;
    if (flag.when_empty() == WhenEmpty::kDefault) {
      flags.erase(name);
      defaulted.insert(name);
      return true;
    }
  }
  flags[name] = std::move(given);
  return true;
}

Result<CommandLine> split_command_line(const std::vector<std::string>& arguments,
                                       const GetEnvironment& environment) {
  auto options = parse_options(arguments);
  if (!options) return options.error();
  CommandLine line;
  for (const po::option& option : *options) {
    if (option.string_key.empty()) {
      if (option.value.empty()) continue;
      line.has_program = true;
      line.program = option.value.front();
      line.arguments.assign(option.value.begin() + 1, option.value.end());
      continue;
    }
    // Without a =, a word that begins with -- is the next flag, which the library has taken for the
    // value.
    const bool is_next_word = option.original_tokens.size() > 1;
    if (is_next_word && !option.value.empty() && option.value.front().starts_with("--")) {
      return value_missing(option.string_key);
    }
    GivenFlag given{option.value.empty() ? "" : option.value.front(), "--" + option.string_key};
    if (!option.value.empty()) given.shown += " " + given.value;
    if (const GivenFlag* earlier = line.find(option.string_key)) given.values = earlier->values;
    given.values.push_back(given.value);
    if (!line.take(*find_flag(option.string_key), std::move(given)))
      return value_missing(option.string_key);
  }
  if (const auto filled = fill_from_environment(line, environment); !filled) return filled.error();
  return line;
}

}  // namespace ddp::flags
