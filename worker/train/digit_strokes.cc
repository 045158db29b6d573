#include "worker/train/digit_strokes.h"

#include <array>
#include <cstddef>
#include <sstream>
#include <string>

#include "common/base/check.h"

namespace ddp::train {
namespace {

using Shapes = std::array<std::vector<DigitShape>, 10>;  // By digit.

// A line for each shape: the digit, then its strokes with x and y of their points in hundredths.
constexpr const char* kShapes =
    R"(0 curve 50 8 74 26 77 60 52 92 25 66 25 28 50 8
0 curve 56 7 40 12 32 50 42 90 60 86 68 48 56 7 46 10
0 curve 50 10 76 30 74 70 48 90 24 70 26 30 52 10 line 66 24 34 78
1 line 50 8 50 92
1 line 34 28 53 8 53 92
1 line 34 26 52 8 52 92 line 32 92 72 92
2 curve 26 28 38 10 62 10 72 30 56 56 26 90 line 26 90 77 90
2 curve 26 26 45 8 70 22 60 54 34 86 23 80 36 72 56 86 78 84
2 curve 24 20 50 8 74 24 60 50 30 70 line 30 70 24 92 76 92
3 curve 27 18 50 7 70 24 44 46 curve 44 46 74 66 56 92 25 82
3 line 27 10 72 10 48 42 curve 48 42 74 62 56 92 26 84
3 curve 26 14 58 8 68 26 50 45 42 47 54 48 74 68 52 92 24 86
4 line 36 10 25 56 77 56 line 62 32 62 92
4 line 62 92 62 8 22 62 80 62
4 curve 30 10 26 36 34 52 64 50 line 70 10 62 92
5 line 73 10 34 10 30 45 curve 30 45 55 38 74 62 58 89 26 86
5 curve 72 13 42 11 32 40 60 46 72 68 52 91 26 82
5 line 34 12 32 46 curve 32 46 60 42 74 66 54 90 28 84 line 34 12 76 8
6 curve 66 10 40 30 27 64 42 90 68 80 66 57 44 53 29 68
6 line 52 6 29 60 curve 29 60 46 50 70 68 50 92 30 80 29 60
6 curve 60 7 30 40 26 78 50 93 72 74 50 58 28 74
7 line 25 10 75 10 42 92
7 line 25 10 75 10 44 92 line 36 50 70 50
7 curve 25 18 28 10 50 10 74 11 58 45 46 92
8 curve 50 8 68 26 50 46 32 26 50 8 curve 50 46 74 70 50 92 26 70 50 46
8 curve 68 18 46 8 32 25 52 46 72 70 50 92 28 72 48 48 66 30 68 18
8 curve 50 8 64 20 50 40 36 22 50 8 curve 50 40 72 60 64 88 40 90 28 66 50 40
9 curve 50 8 70 26 50 50 30 28 50 8 line 69 26 64 92
9 curve 70 22 48 8 30 28 46 50 70 28 70 55 60 88 34 88
9 curve 68 14 42 12 30 34 50 50 70 30 line 70 12 70 92)";

Shapes read_shapes() {
  Shapes shapes;
  std::istringstream lines(kShapes);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::size_t digit = 0;
    words >> digit;
    DigitShape& shape = shapes.at(digit).emplace_back();
    for (std::string word; words >> word;) {
      if (word == "curve" || word == "line") {
        shape.push_back({word == "curve", {}});
        continue;
      }
      double y = 0;
      words >> y;
      shape.back().points.push_back({std::stod(word) / 100, y / 100});
    }
  }
  return shapes;
}

}  // namespace

std::span<const DigitShape> digit_shapes(int digit) {
  DDP_CHECK(digit >= 0 && digit <= 9, "digit {}", digit);
  static const Shapes kAll = read_shapes();
  return kAll[static_cast<std::size_t>(digit)];
}

}  // namespace ddp::train
