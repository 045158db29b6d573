#include "worker/checkpoint/tool/arguments.h"

#include <algorithm>

#include <boost/program_options.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/exit_codes.h"
#include "common/base/parse_number.h"

namespace ddp::checkpoint {

namespace po = boost::program_options;

std::string Arguments::value(const std::string& option) const {
  const auto found = options.find(option);
  return found == options.end() ? "" : found->second;
}

Result<Arguments> parse_arguments(const ArgumentRules& rules,
                                  const std::vector<std::string>& arguments) {
  po::options_description known;
  for (const std::string& option : rules.options) {
    known.add_options()(option.c_str(), po::value<std::string>());
  }
  known.add_options()("path", po::value<std::vector<std::string>>());
  po::positional_options_description paths;
  paths.add("path", -1);
  // No abbreviations: one may mean something else in the next version.
  constexpr int kStyle = po::command_line_style::allow_long |
                         po::command_line_style::long_allow_adjacent |
                         po::command_line_style::long_allow_next;
  Arguments parsed;
  try {
    po::variables_map values;
    po::store(
        po::command_line_parser(arguments).options(known).positional(paths).style(kStyle).run(),
        values);
    if (values.contains("path")) parsed.paths = values["path"].as<std::vector<std::string>>();
    for (const std::string& option : rules.options) {
      if (values.contains(option)) parsed.options[option] = values[option].as<std::string>();
    }
  } catch (const po::error& error) {
    return make_error(Errc::kInvalidArgument, "{}", error.what());
  }
  if (parsed.paths.size() != rules.paths.size()) {
    return make_error(Errc::kInvalidArgument, "it takes {}, but there {} {} such argument{}",
                      fmt::join(rules.paths, " and "), parsed.paths.size() == 1 ? "is" : "are",
                      parsed.paths.size(), parsed.paths.size() == 1 ? "" : "s");
  }
  return parsed;
}

Result<std::int64_t> integer_option(const Arguments& arguments, const std::string& option,
                                    std::int64_t least, std::int64_t otherwise) {
  const auto found = arguments.options.find(option);
  if (found == arguments.options.end()) return otherwise;
  const std::string& text = found->second;
  const auto number = parse_whole_number(text, least);
  if (number) return *number;
  return make_error(Errc::kInvalidArgument, "--{} is \"{}\"; expected an integer of at least {}",
                    option, text, least);
}

int report(const char* command, const Error& error, int status, std::ostream& err) {
  err << fmt::format("ddp-checkpoint {}: {}\n", command, error.message);
  return status;
}

int report_usage(const char* command, const Error& error, std::ostream& err) {
  report(command, error, kExitUsage, err);
  err << fmt::format("`ddp-checkpoint {} --help` explains it.\n", command);
  return kExitUsage;
}

}  // namespace ddp::checkpoint
