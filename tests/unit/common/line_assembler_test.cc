#include "common/base/line_assembler.h"

#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddp {
namespace {

using testing::ElementsAre;

std::vector<std::string> assembled(const std::vector<std::string>& pieces) {
  LineAssembler assembler;
  std::vector<std::string> lines;
  const auto sink = [&](std::string_view line) { lines.emplace_back(line); };
  for (const std::string& piece : pieces) assembler.feed(piece, sink);
  assembler.finish(sink);
  return lines;
}

TEST(LineAssembler, MakesLinesOfPieces) {
  EXPECT_THAT(assembled({}), ElementsAre());
  EXPECT_THAT(assembled({"a\nb\n"}), ElementsAre("a\n", "b\n"));
  EXPECT_THAT(assembled({"a", "", "b\nc", "\n\nd"}), ElementsAre("ab\n", "c\n", "\n", "d\n"));
  const std::string binary("\0\xFF\r", 3);
  EXPECT_THAT(assembled({binary, "\n"}), ElementsAre(binary + "\n"));
  const std::string megabyte(1 << 20, 'x');
  EXPECT_THAT(assembled({megabyte.substr(1), "x\n", "y\n"}), ElementsAre(megabyte + "\n", "y\n"));
}

TEST(LineAssembler, ALineWithoutEndIsPassedOnInParts) {
  const std::string half(LineAssembler::kMaxLineBytes / 2, 'x');
  EXPECT_THAT(assembled({half, half, "y\n"}), ElementsAre(half + half, "y\n"));
}

}  // namespace
}  // namespace ddp
