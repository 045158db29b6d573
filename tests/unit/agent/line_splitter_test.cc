#include "agent/process/line_splitter.h"

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddp::agent {
namespace {

using std::string_literals::operator""s;
using testing::ElementsAre;

// Pieces as text, with < in front of those that continue a line and > behind those that are
// continued.
class Collector {
 public:
  explicit Collector(LineSplitter::Ends ends = LineSplitter::Ends::kNewline) : splitter_(ends) {}

  void feed(std::string_view bytes) {
    splitter_.feed(bytes, [this](const LineSplitter::Piece& piece) { add(piece); });
  }
  void finish() {
    splitter_.finish([this](const LineSplitter::Piece& piece) { add(piece); });
  }
  std::vector<std::string> pieces;

 private:
  void add(const LineSplitter::Piece& piece) {
    pieces.push_back((piece.continues ? "<" : "") + std::string(piece.text) +
                     (piece.unfinished ? ">" : ""));
  }
  LineSplitter splitter_;
};

TEST(LineSplitter, CutsAtNewlinesAndKeepsEmptyLines) {
  Collector lines;
  lines.feed("one\n\ntwo\n");
  EXPECT_THAT(lines.pieces, ElementsAre("one", "", "two"));
}

TEST(LineSplitter, HoldsALineUntilItsEndHasCome) {
  Collector lines;
  lines.feed("a");
  lines.feed("b");
  EXPECT_TRUE(lines.pieces.empty());
  lines.feed("c\nd");
  EXPECT_THAT(lines.pieces, ElementsAre("abc"));
}

TEST(LineSplitter, TheLastLineNeedsNoNewline) {
  Collector lines;
  lines.feed("a\nlast words");
  lines.finish();
  lines.finish();
  EXPECT_THAT(lines.pieces, ElementsAre("a", "last words"));
}

TEST(LineSplitter, ZeroBytesAndCarriageReturnsAreBytesLikeOthers) {
  Collector lines;
  lines.feed("a\0b\r\n\xff\r\n"s);
  EXPECT_THAT(lines.pieces, ElementsAre("a\0b\r"s, "\xff\r"));
}

TEST(LineSplitter, ALineThatIsRewrittenCanBeTakenEarly) {
  LineSplitter splitter;
  std::vector<std::string> pieces;
  const auto add = [&](const LineSplitter::Piece& piece) {
    pieces.push_back((piece.continues ? "+" : "") + std::string(piece.resumed ? "!" : "") +
                     std::string(piece.text) + (piece.unfinished ? "..." : ""));
  };
  splitter.feed("plain", add);
  EXPECT_FALSE(splitter.is_rewritten());
  splitter.feed("\r10%\r", add);
  EXPECT_TRUE(splitter.is_rewritten());
  splitter.take_early(add);
  splitter.take_early(add);  // Nothing but the \r is left.
  EXPECT_FALSE(splitter.is_rewritten());
  splitter.feed("\nnext\r", add);
  splitter.take_early(add);
  splitter.feed("20%\nlast\n", add);
  EXPECT_EQ(pieces,
            (std::vector<std::string>{"plain\r10%...", "+!\r", "next...", "+!\r20%", "last"}));
}

TEST(LineSplitter, ALineOfTheLimitIsWholeAndOneByteMoreIsTwoPieces) {
  const std::string limit(LineSplitter::kMaxPieceBytes, 'x');
  Collector lines;
  lines.feed(limit + "\n" + limit + "y\nz\n");
  EXPECT_THAT(lines.pieces, ElementsAre(limit, limit + ">", "<y", "z"));
}

TEST(LineSplitter, ALongLineWithoutNewlineEndsWithTheStream) {
  const std::string limit(LineSplitter::kMaxPieceBytes, 'x');
  Collector lines;
  lines.feed(limit + limit + "y");
  lines.finish();
  EXPECT_THAT(lines.pieces, ElementsAre(limit + ">", "<" + limit + ">", "<y"));
  lines.feed("next\n");
  EXPECT_EQ(lines.pieces.back(), "next");
}

TEST(LineSplitter, OnATerminalEachStateOfAProgressBarIsALine) {
  Collector lines(LineSplitter::Ends::kNewlineOrReturn);
  lines.feed("\r 1%\r 2%\r");
  EXPECT_THAT(lines.pieces, ElementsAre(" 1%"));
  lines.feed("\n");
  EXPECT_THAT(lines.pieces, ElementsAre(" 1%", " 2%"));
  lines.feed("text\r");
  lines.feed("\n\nmore\r\nend\r");
  lines.finish();
  EXPECT_THAT(lines.pieces, ElementsAre(" 1%", " 2%", "text", "", "more", "end"));
}

// Whatever the cuts between reads, the bytes that come out are those that went in.
TEST(LineSplitter, PiecesPutTogetherAreTheInput) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 20; ++round) {
    std::string input;
    while (input.size() < 300'000) {
      input.append(random() % 3 == 0 ? random() % 150'000 : random() % 40,
                   static_cast<char>(random()));
      input.push_back('\n');
    }
    if (random() % 2 == 0) input.append("tail");
    std::string output;
    bool middle = false;
    const auto sink = [&](const LineSplitter::Piece& piece) {
      EXPECT_EQ(piece.continues, middle);
      EXPECT_LE(piece.text.size(), LineSplitter::kMaxPieceBytes);
      output.append(piece.text);
      if (!piece.unfinished) output.push_back('\n');
      middle = piece.unfinished;
    };
    LineSplitter splitter;
    for (std::string_view rest = input; !rest.empty();) {
      const std::size_t size = std::min<std::size_t>(rest.size(), 1 + random() % 70'000);
      splitter.feed(rest.substr(0, size), sink);
      rest.remove_prefix(size);
    }
    splitter.finish(sink);
    if (input.back() != '\n') output.pop_back();
    ASSERT_EQ(output, input);
  }
}

}  // namespace
}  // namespace ddp::agent
