#include "common/base/key_map.h"

#include <limits>

#include <gtest/gtest.h>

namespace ddp {
namespace {

TEST(KeyMapTest, AddsLikeStrtoll) {
  const auto add = [](std::string_view text, std::int64_t delta) {
    KeyMap map;
    map.put("k", text);
    return map.sum("k", delta);
  };
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(add("0", 5).value(), 5);
  EXPECT_EQ(add("-2", 1).value(), -1);
  EXPECT_EQ(add(" \t\n\v\f\r+7x", 1).value(), 8);
  EXPECT_EQ(add(" 12abc", 1).value(), 13);
  EXPECT_EQ(add(std::string_view("3\0004", 3), 0).value(), 3);
  EXPECT_EQ(add("9223372036854775807", 1).value(), kMin);
  EXPECT_EQ(add("-9223372036854775808", -1).value(), kMax);
  for (const std::string_view text :
       {"", " ", "x1", "+-1", "-+1", "+", "- 1", "9223372036854775808", "-9223372036854775809"}) {
    EXPECT_FALSE(add(text, 1)) << text;
  }
  EXPECT_FALSE(add(std::string_view("\0001", 2), 1));
}

}  // namespace
}  // namespace ddp
