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
#include "agent/process/file_writer.h"
#include "agent/process/filtered_log.h"
#include "agent/process/last_lines.h"
#include "agent/process/line_prefix.h"
#include "agent/process/line_splitter.h"
#include "common/base/unique_fd.h"
#include "common/net/timer.h"

namespace ddp::agent {

// Reads one output stream of one worker from its pipe. It passes the output on:
//   * to the console, in whole lines with the prefix before each, many of them in one write;
//   * to a file, byte by byte and unchanged;
//   * to memory: the last lines, for the report, and the last bytes, for people who look.
// A line longer than LineSplitter::kMaxPieceBytes appears on the console in pieces. Those after the
// first have a + behind the prefix. A progress bar rewrites its line with \r. On a terminal each \r
// ends a line. On another console such a line appears in pieces, too: once a second, what has come
// of it. If lines need not be told apart, the console gets the bytes at once and unchanged.
//
// While the console is full, nothing is read that must go to it. So a worker that writes faster
// than the console's reader has to wait, as it would without ddp-run, up to
// Console::set_stall_limit(). A disk that stands still holds up the workers that write to it, but
// not this process. If the file cannot be written, the console gets the rest, and all that follows.
// Lives on the thread of `io`.
class OutputCapture : public std::enable_shared_from_this<OutputCapture> {
 public:
  static constexpr std::size_t kTailLines = 20;
  static constexpr std::size_t kTailLineBytes = 2'000;
  static constexpr std::size_t kRecentBytes = 8'192;

  // Where the output goes besides the file. Each round has its own.
  struct Route {
    bool to_console = true;
    bool whole_lines = false;                 // Others write to the console, too.
    LinePrefix prefix{};                      // With whole_lines.
    std::shared_ptr<FilteredLog> filtered{};  // Null: none.
  };
  struct Options {
    Route route;
    FileWriter::Opener file;  // Null: no file.
    bool keep_tail = false;
  };

  // `files` must outlive it.
  static std::shared_ptr<OutputCapture> start(asio::io_context& io, UniqueFd pipe,
                                              std::shared_ptr<Console> console, FileWriter& files,
                                              Options options);

  // Reads what is in the pipe now, even if the console is full. An unfinished line counts as a
  // line. Call when the worker has ended. Reading goes on after that if other processes hold the
  // pipe.
  void drain();
  // Stops reading and closes pipe and file. What has been read is still written.
  void close();

  // The worker takes part in another round from now on. First reads what has come. Then writes
  // `separator` to the file on a line of its own, and forgets the last lines.
  void begin_round(Route route, const std::string& separator);
  // Adds whole lines that the worker has not written: to the console and the file like its own, but
  // not to its last lines.
  void add_lines(const std::string& lines);

  std::vector<std::string> tail() const { return tail_.lines(); }
  // The last whole lines, with their ends, and what follows them: at most kRecentBytes. In all
  // rounds.
  std::string recent() const;
  // The reason of the failure, if the program has written it. Only with keep_tail.
  std::string exception() const { return exception_.text(); }

 private:
  OutputCapture(asio::io_context& io, std::shared_ptr<Console> console, FileWriter& files,
                Route route, bool keep_tail);
  void open_file(FileWriter::Opener file);
  void on_file_failure(std::string_view rest);
  void wait();
  void on_readable();
  enum class ReadStatus { kData, kNothing, kEnd };
  ReadStatus read_once(std::size_t limit);
  bool needs_lines() const;
  void keep_recent(std::string_view bytes);
  void consume(std::string_view bytes);
  void finish_line();
  void show_progress_soon();
  void take_line(const LineSplitter::Piece& piece);
  void show_line(const LineSplitter::Piece& piece);
  void show_batch();
  // Ends an unfinished line, so that the next text begins a line.
  void finish_file_line();
  void write_file(std::string_view bytes);

  asio::posix::stream_descriptor pipe_;
  std::shared_ptr<Console> console_;
  FileWriter& files_;
  Route route_;
  bool keep_tail_;
  WrittenFile file_;
  bool file_failed_ = false;  // The console gets what was meant for the file.
  LineSplitter splitter_;
  LastLines<kTailLines, kTailLineBytes> tail_;
  std::string recent_;  // The last bytes, at most twice kRecentBytes.
  ExceptionText exception_;
  char last_in_file_ = '\n';
  net::Timer progress_timer_;
  bool progress_is_due_ = false;  // progress_timer_ runs.
};

}  // namespace ddp::agent
