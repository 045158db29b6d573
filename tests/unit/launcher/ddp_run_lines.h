#pragma once

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/ddp_run/exit_error.h"
#include "launcher/ddp_run/flags.h"

// Command lines of ddp-run with the environment they are given in: what the options are then, or
// what is said about a line that is wrong.
namespace ddp::run {

using Arguments = std::vector<std::string>;
using Environment = std::map<std::string, std::string>;

inline Result<Options> parse(const Arguments& arguments, const Environment& environment = {}) {
  return parse_flags(arguments, [&environment](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

// The options of a line that is right; a test failure where it is not.
inline Options options_of(const Arguments& arguments, const Environment& environment = {}) {
  auto options = parse(arguments, environment);
  EXPECT_TRUE(options) << (options ? "" : options.error().message);
  return options ? *options : Options{};
}

// A line that is refused with this exit code and this one line of text.
struct Wrong {
  Arguments arguments;
  int exit_code;
  std::string message;
  Environment environment = {};
};

// Its test is in ddp_run_flags_test.cc; every file that has wrong lines instantiates it.
class WrongLine : public testing::TestWithParam<Wrong> {};

}  // namespace ddp::run
