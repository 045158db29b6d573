#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace ddp::checkpoint {

// The arguments that a command accepts.
struct ArgumentRules {
  std::vector<std::string> paths;    // Names of the arguments without a flag; all are required.
  std::vector<std::string> options;  // Flags with a value, without "--".
};

struct Arguments {
  std::vector<std::string> paths;
  std::map<std::string, std::string> options;

  // The option's value; empty if it is not given.
  std::string value(const std::string& option) const;
  bool has(const std::string& option) const { return options.contains(option); }
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
