#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include "agent/process/console.h"
#include "agent/process/exception_text.h"
#include "agent/process/filtered_log.h"
#include "agent/process/folded_lines.h"
#include "agent/process/last_lines.h"
#include "agent/process/line_prefix.h"
#include "agent/process/line_splitter.h"
#include "common/base/unique_fd.h"
#include "common/net/timer.h"

namespace ddp::agent {

// One output stream of one worker, read from its pipe as it comes: to the console in whole lines,
// each with the prefix, many of them in one write; to a file byte by byte as it is; and the last
// lines to memory. A line longer than LineSplitter::kMaxPieceBytes appears on the console in
// pieces, those after the first marked by a + behind the prefix. So does one that a progress bar
// writes anew and anew, with \r, to a console that is no terminal: what has come of it, once a
// second. (On a terminal each \r ends a line.) Where lines need not be told apart
// the console gets the bytes as they are, at once.
//
// While the console is full nothing is read that it is to have, so a worker that writes faster than
// the reader takes waits as it would on its own, up to Console::set_stall_limit(). Lives on the
// thread of `io`.
class OutputCapture : public std::enable_shared_from_this<OutputCapture> {
 public:
  static constexpr std::size_t kTailLines = 20;
  static constexpr std::size_t kTailLineBytes = 2'000;

  // Where the output goes beside the file; another one for each round.
  struct Route {
    bool to_console = true;
    bool whole_lines = false;                 // Others write to the console too.
    LinePrefix prefix{};                      // With whole_lines.
    int local_rank = -1;                      // For `folded`.
    std::shared_ptr<FoldedLines> folded{};    // On the way to the console; null: none.
    std::shared_ptr<FilteredLog> filtered{};  // Null: none.
  };
  struct Options {
    Route route;
    UniqueFd file;  // Empty: no file.
    bool keep_tail = false;
  };

  static std::shared_ptr<OutputCapture> start(asio::io_context& io, UniqueFd pipe,
                                              std::shared_ptr<Console> console, Options options);

  // Reads what lies in the pipe at this moment, also if the console is full, and takes an
  // unfinished line as a line. Call when the worker has ended. Whoever else holds the pipe can be
  // read on.
  void drain();
  // Stops reading and closes pipe and file.
  void close();

  // The worker takes part in another round from now on: the file gets `separator` on a line of its
  // own, and the last lines begin anew. Reads what has come first.
  void begin_round(Route route, const std::string& separator);
  // Whole lines that are not the worker's: to the console and the file as if it had written them,
  // but not among its last lines.
  void add_lines(const std::string& lines);

  std::vector<std::string> tail() const { return tail_.lines(); }
  // What the program failed of, as far as it has written it; only with keep_tail.
  std::string exception() const { return exception_.text(); }

 private:
  OutputCapture(asio::io_context& io, std::shared_ptr<Console> console, Options options);
  void wait();
  void on_readable();
  enum class ReadStatus { kData, kNothing, kEnd };
  ReadStatus read_once(std::size_t limit);
  bool needs_lines() const;
  void consume(std::string_view bytes);
  void finish_line();
  void show_progress_soon();
  void take_line(const LineSplitter::Piece& piece);
  void show_line(const LineSplitter::Piece& piece);
  void show_batch();
  // Ends an unfinished line, so that what follows stands on its own.
  void finish_file_line();
  void write_file(std::string_view bytes);

  asio::posix::stream_descriptor pipe_;
  std::shared_ptr<Console> console_;
  Options options_;
  LineSplitter splitter_;
  LastLines<kTailLines, kTailLineBytes> tail_;
  ExceptionText exception_;
  char last_in_file_ = '\n';
  net::Timer progress_timer_;
  bool progress_is_due_ = false;  // progress_timer_ runs.
};

}  // namespace ddp::agent
