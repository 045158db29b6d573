#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace ddp::checkpoint {

// The arguments that a command accepts.
struct ArgumentRules {
  const char* command;
  std::vector<std::string> paths;     // Names of the arguments without a flag; all are required.
  std::vector<std::string> options;   // Flags with a value, without "--".
  std::vector<std::string> switches;  // Flags without a value.
};

struct Arguments {
  std::vector<std::string> paths;
  std::map<std::string, std::string> options;
  std::set<std::string> switches;

  // The option's value, or `otherwise`.
  std::string value(const std::string& option, const std::string& otherwise = "") const;
  bool has(const std::string& name) const {
    return options.contains(name) || switches.contains(name);
  }
};

// kInvalidArgument: the message names the argument and what is expected.
Result<Arguments> parse_arguments(const ArgumentRules& rules,
                                  const std::vector<std::string>& arguments);

// The option's value as an integer of at least `least`; `otherwise` if it is not given.
// kInvalidArgument: the message names the option and the limit.
Result<std::int64_t> integer_option(const Arguments& arguments, const std::string& option,
                                    std::int64_t least, std::int64_t otherwise);

// Print "ddp-checkpoint COMMAND: MESSAGE" to `err` and return the status.
int report_usage(const char* command, const Error& error, std::ostream& err);
int report(const char* command, const Error& error, int status, std::ostream& err);

}  // namespace ddp::checkpoint
