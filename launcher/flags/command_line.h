#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "launcher/flags/flag_table.h"
#include "launcher/flags/flags.h"

namespace ddp::flags {

// A flag that was given, before its value is looked at.
struct GivenFlag {
  std::string value;                  // Empty for a flag without one.
  std::string shown;                  // As in an error message: "--nnodes 4:2", "PET_NNODES=4:2".
  std::vector<std::string> values{};  // Of every occurrence in order, for flags that add up.
};

// Which flags were given and where the program starts.
struct CommandLine {
  std::map<std::string, GivenFlag, std::less<>> flags;  // By name with dashes; the last occurrence.
  // Flags that an empty value on the line sets to their default. PET_NAME has no say in them.
  std::set<std::string, std::less<>> defaulted;
  bool has_program = false;
  std::string program;
  std::vector<std::string> arguments;

  // The flag if it was given.
  const GivenFlag* find(std::string_view name) const;
  // Sets a flag and replaces its former value. False if the value is empty and must not be.
  [[nodiscard]] bool take(const Flag& flag, GivenFlag given);
};

// Splits argv (without argv[0]) into flags and program by the flag table; PET_NAME fills in flags
// that the line lacks. Errors are exit_error with kExitUsage, or kExitInvalidValue for a PET_NAME
// that is not a number where one is needed.
Result<CommandLine> split_command_line(const std::vector<std::string>& arguments,
                                       const GetEnvironment& environment);

}  // namespace ddp::flags
