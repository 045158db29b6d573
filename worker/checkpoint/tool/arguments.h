#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace ddp::checkpoint {

// What a command takes.
struct ArgumentRules {
  const char* command;
  std::vector<std::string> paths;     // Names of the arguments without a flag, all of them needed.
  std::vector<std::string> options;   // Flags with a value, without "--".
  std::vector<std::string> switches;  // Flags without one.
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

// kInvalidArgument, naming the argument and what is expected.
Result<Arguments> parse_arguments(const ArgumentRules& rules,
                                  const std::vector<std::string>& arguments);

// The option's value as an integer of at least `least`; `otherwise` if it is not given.
// kInvalidArgument, naming the option and the limit.
Result<std::int64_t> integer_option(const Arguments& arguments, const std::string& option,
                                    std::int64_t least, std::int64_t otherwise);

// Say "ddp-checkpoint COMMAND: MESSAGE" and return the status.
int report_usage(const char* command, const Error& error, std::ostream& err);
int report(const char* command, const Error& error, int status, std::ostream& err);

}  // namespace ddp::checkpoint
