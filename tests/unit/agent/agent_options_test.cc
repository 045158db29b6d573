#include "agent/shell/agent_options.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddp::agent {
namespace {

using testing::HasSubstr;

TEST(AgentOptions, ReadsAll) {
  const auto options = parse_agent_options({"--job-fd", "3", "--result-fd", "4", "--last-round",
                                            "-1", "--restarts", "2", "--coordinator-fd", "5"});
  ASSERT_TRUE(options.has_value()) << options.error().message;
  EXPECT_EQ(options->job_fd, 3);
  EXPECT_EQ(options->result_fd, 4);
  EXPECT_EQ(options->last_round, kNoRound);
  EXPECT_EQ(options->restarts, 2);
  EXPECT_EQ(options->coordinator_fd, 5);
}

TEST(AgentOptions, ErrorsNameTheArgument) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "--job-fd is missing"},
      {{"--job-fd", "3"}, "--result-fd is missing"},
      {{"--job-fd"}, "--job-fd: its value is missing"},
      {{"--job-fd", "x"}, "--job-fd x: expected a number from 0"},
      {{"--job-fd", "-3"}, "--job-fd -3: expected a number from 0"},
      {{"--restarts", "3x"}, "--restarts 3x: expected a number from 0"},
      {{"--last-round", "-2"}, "--last-round -2: expected a number from -1"},
      {{"--restarts", "99999999999"}, "--restarts 99999999999"},
      {{"--other", "3"}, "--other: unknown argument"},
  };
  for (const auto& [arguments, message] : cases) {
    const auto options = parse_agent_options(arguments);
    ASSERT_FALSE(options.has_value()) << message;
    EXPECT_THAT(options.error().message, HasSubstr(message));
  }
}

}  // namespace
}  // namespace ddp::agent
