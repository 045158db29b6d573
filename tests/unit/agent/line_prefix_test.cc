#include "agent/process/line_prefix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddp::agent {
namespace {

const LinePrefix::Values kValues{"trainer", "12", "4", "node3", "1"};

std::string rendered(std::string_view text, bool continues = false) {
  std::string line;
  LinePrefix(text, kValues).append_to(line, {}, continues);
  return line;
}

TEST(LinePrefix, NamesStandForValues) {
  const struct {
    const char* text;
    const char* prefix;
  } cases[] = {
      {"", ""},
      {"plain", "plain"},
      {"[${role_name}${local_rank}]:", "[trainer4]:"},
      {"${hostname}/${node_rank}/${rank} ", "node3/1/12 "},
      {"$rank-$local_rank", "12-4"},
      {"$$rank $", "$rank $"},
      {"${unknown} $other ${rank", "${unknown} $other ${rank"},
      {"${} ${1} $1", "${} ${1} $1"},
      {"${rank}${rank}", "1212"},
      {"$ranks", "$ranks"},
  };
  for (const auto& c : cases) EXPECT_EQ(rendered(c.text), c.prefix) << c.text;
}

TEST(LinePrefix, AContinuedLineHasAPlus) {
  EXPECT_EQ(rendered("[$rank] ", true), "[12]+ ");
  EXPECT_EQ(rendered("[$rank]:", true), "[12]:+");
  EXPECT_EQ(rendered("", true), "");
}

TEST(LinePrefix, TheTimeIsThatOfTheLine) {
  ::setenv("TZ", "UTC", 1);
  const LinePrefix prefix("${time} ${rank}: ", kValues);
  ASSERT_TRUE(prefix.has_time());
  std::string line = "x";
  prefix.append_to(line, LinePrefix::WallTime(std::chrono::milliseconds(1'795'352'709'125)));
  EXPECT_EQ(line, "x2026-11-22 13:05:09.125 12: ");
  EXPECT_EQ(prefix.name(), " 12:");
}

TEST(LinePrefix, EmptyIsNone) {
  EXPECT_TRUE(LinePrefix().empty());
  EXPECT_TRUE(LinePrefix("", kValues).empty());
  EXPECT_FALSE(LinePrefix("${time}", kValues).empty());
}

}  // namespace
}  // namespace ddp::agent
