#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

// What `ddp-run top` shows of a job, as lines of text with styles. Pure; top_main.cc puts it on the
// screen.
namespace ddp::status {

enum class Style { kPlain, kBold, kSoft, kGood, kBehind, kLate, kBad, kIdle, kEnding };

struct Span {
  std::string text;
  Style style = Style::kPlain;
  bool marked = false;
};
using Line = std::vector<Span>;

struct TopView {
  int width = 80;          // Columns; lines are not longer.
  std::size_t marked = 0;  // Which cell of the grid is marked: see cells_of.
  bool blocks = true;      // The terminal shows UTF-8.
};

// A cell of the grid: a rank, or a node that has none (rank -1).
struct Cell {
  std::string node_id;
  int rank = -1;
};
std::vector<Cell> cells_of(const nlohmann::json& job);

// `job`: of the page's document (page/page_document.h).
std::vector<Line> top_screen(const nlohmann::json& job, const TopView& view);

// How many columns the text takes: characters, not bytes.
int columns_of(const std::string& text);

// The lines of a text of others, none longer than `columns` (at least 1): a longer one goes on in
// the next, in place of a blank if it has one in its second half.
std::vector<Line> wrapped(const std::string& text, int columns);

}  // namespace ddp::status
