#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include <asio/io_context.hpp>

#include "agent/process/console.h"
#include "agent/process/line_folder.h"
#include "agent/process/line_prefix.h"
#include "common/net/timer.h"

namespace ddp::agent {

// Passes the lines of all workers of a node to one console and joins equal lines (LineFolder).
// Lives on the thread of `io`.
class FoldedLines {
 public:
  // Returns the prefix of a line that these workers (ascending local ranks) have written.
  using PrefixOf = std::function<LinePrefix(const std::vector<int>& local_ranks)>;

  FoldedLines(asio::io_context& io, std::shared_ptr<Console> console);

  // Shows the lines that are held. From now on workers 0 to `members` - 1 write.
  void begin_round(int members, PrefixOf prefix_of);
  void add(int local_rank, std::string_view text);
  // Shows the lines that are held.
  void flush();

 private:
  void show(const std::vector<LineFolder::Line>& lines);
  void arm();

  std::shared_ptr<Console> console_;
  LineFolder folder_;
  PrefixOf prefix_of_;
  net::Timer timer_;
  TimePoint armed_for_{};  // When the timer is due; TimePoint{} while it does not run.
};

}  // namespace ddp::agent
