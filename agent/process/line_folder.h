#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/clock.h"

namespace ddp::agent {

// Joins equal lines that several workers write within a short time. No line is lost, and the lines
// of one worker keep their order: a line joins an equal one only if that comes after all earlier
// lines of its worker. Two equal lines of one worker stay two lines. Pure. Holds a line no longer
// than the window, and no more bytes than the limit.
class LineFolder {
 public:
  struct Line {
    std::string text;
    std::vector<int> members;  // The workers that wrote it, ascending.
  };

  static constexpr Duration kWindow{200};
  static constexpr std::size_t kMaxBytes = 1u << 20;

  explicit LineFolder(Duration window = kWindow, std::size_t max_bytes = kMaxBytes)
      : window_(window), max_bytes_(max_bytes) {}

  // Workers 0 to `members` - 1 write from now on. Nothing may be held: take_all() first.
  void begin(int members);
  void add(TimePoint now, int member, std::string_view text);
  // The lines that are due, in the order in which to show them: lines that all workers have
  // written, lines held for the whole window, and lines for which there is no more room.
  std::vector<Line> take(TimePoint now);
  std::vector<Line> take_all();
  // When take() next returns a line if nothing is added. Empty while no line is held.
  std::optional<TimePoint> next_deadline() const;

 private:
  struct Held {
    Line line;
    TimePoint deadline;
  };
  Line pop();

  const Duration window_;
  const std::size_t max_bytes_;
  std::deque<Held> held_;            // In order of their first writer.
  std::uint64_t first_ = 1;          // Number of held_.front(); numbers go up by one.
  std::vector<std::uint64_t> last_;  // By member: number of the last line it wrote.
  // The numbers of held lines by their text. The keys are views of the texts in held_.
  std::unordered_map<std::string_view, std::deque<std::uint64_t>> by_text_;
  std::size_t bytes_ = 0;
};

}  // namespace ddp::agent
