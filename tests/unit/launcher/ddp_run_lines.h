#pragma once

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_error.h"
#include "launcher/flags/flags.h"

// Command lines of ddp-run with their environment: the resulting options, or the error for a wrong
// line.
namespace ddp::flags {

using Arguments = std::vector<std::string>;
using Environment = std::map<std::string, std::string>;

inline Result<Options> parse(const Arguments& arguments, const Environment& environment = {}) {
  return parse_flags(arguments, [&environment](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

// The options of a valid line; fails the test if the line is not valid.
inline Options options_of(const Arguments& arguments, const Environment& environment = {}) {
  auto options = parse(arguments, environment);
  EXPECT_TRUE(options) << (options ? "" : options.error().message);
  return options ? *options : Options{};
}

// Expects that the line is refused with this exit code and this one line of text.
struct Wrong {
  Arguments arguments;
  int exit_code;
  std::string message;
  Environment environment = {};
};

// Its test is in ddp_run_flags_test.cc; every file that has wrong lines instantiates it.
class WrongLine : public testing::TestWithParam<Wrong> {};

}  // namespace ddp::flags
