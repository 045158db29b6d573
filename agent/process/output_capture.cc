#include "agent/process/output_capture.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

namespace ddp::agent {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;
// Reads in a row before other streams get their turn.
constexpr int kReadsPerTurn = 4;

constexpr Duration kProgressInterval{1'000};

// One buffer serves all streams: nothing stays in it between two reads, and all are read by one
// thread.
std::array<char, kReadBytes>& read_buffer() {
  static std::array<char, kReadBytes> buffer;
  return buffer;
}

// Lines on their way to the console, put together for one write; empty between two reads, and
// shared for the same reason.
std::string& line_batch() {
  static std::string batch;
  return batch;
}
constexpr std::size_t kBatchBytes = 64 * 1024;

void append_line(std::string& text, const OutputCapture::Route& route,
                 const LineSplitter::Piece& piece) {
  route.prefix.append_to(
      text, route.prefix.has_time() ? std::chrono::system_clock::now() : LinePrefix::WallTime{},
      piece.continues);
  text.append(piece.text).push_back('\n');
}

// What a file has not got.
void show_rest(Console& console, const OutputCapture::Route& route, std::string_view rest) {
  if (!route.whole_lines) return console.write(rest);
  std::string text;
  const auto append = [&](const LineSplitter::Piece& piece) { append_line(text, route, piece); };
  LineSplitter lines;
  lines.feed(rest, append);
  lines.finish(append);
  console.write(text);
}

}  // namespace

OutputCapture::OutputCapture(asio::io_context& io, std::shared_ptr<Console> console,
                             FileWriter& files, Route route, bool keep_tail)
    : pipe_(io),
      console_(std::move(console)),
      files_(files),
      route_(std::move(route)),
      keep_tail_(keep_tail),
      splitter_(console_->is_terminal() ? LineSplitter::Ends::kNewlineOrReturn
                                        : LineSplitter::Ends::kNewline),
      progress_timer_(io) {}

std::shared_ptr<OutputCapture> OutputCapture::start(asio::io_context& io, UniqueFd pipe,
                                                    std::shared_ptr<Console> console,
                                                    FileWriter& files, Options options) {
  std::shared_ptr<OutputCapture> capture(new OutputCapture(
      io, std::move(console), files, std::move(options.route), options.keep_tail));
  if (options.file) capture->open_file(std::move(options.file));
  ::fcntl(pipe.get(), F_SETFL, O_NONBLOCK);
  capture->pipe_.assign(pipe.release());
  capture->wait();
  return capture;
}

// The failure may be told when this object has ended.
void OutputCapture::open_file(FileWriter::Opener file) {
  auto on_failure = [console = console_, route = route_,
                     weak = weak_from_this()](const FileWriter::Failure& failure) {
    const std::string name = route.prefix.name();
    console->print(fmt::format("ddp-run: --log-dir: the log file of {} cannot be written: {}",
                               name.empty() ? "the worker" : name, failure.why));
    if (const auto self = weak.lock()) {
      self->on_file_failure(failure.rest);
    } else if (!route.to_console) {
      show_rest(*console, route, failure.rest);
    }
  };
  file_ = files_.open(std::move(file), std::move(on_failure));
}

void OutputCapture::on_file_failure(std::string_view rest) {
  file_.close();
  file_failed_ = true;
  const bool splits = needs_lines();
  if (std::exchange(route_.to_console, true)) return;  // It has all that.
  if (!pipe_.is_open() || !route_.whole_lines) return show_rest(*console_, route_, rest);
  if (splits) {  // The splitter has the beginning of a line that goes on.
    if (splitter_.is_within_line()) rest = rest.substr(0, rest.rfind('\n') + 1);
    return show_rest(*console_, route_, rest);
  }
  splitter_.feed(rest, [this](const LineSplitter::Piece& piece) { take_line(piece); });
  show_batch();
}

void OutputCapture::wait() {
  pipe_.async_wait(asio::posix::stream_descriptor::wait_read,
                   [weak = weak_from_this()](const std::error_code& error) {
                     const auto self = weak.lock();
                     if (self && !error) self->on_readable();
                   });
}

void OutputCapture::on_readable() {
  if (!pipe_.is_open()) return;
  for (int i = 0; i < kReadsPerTurn; ++i) {
    if (route_.to_console && console_->full()) {
      console_->when_not_full([weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->on_readable();
      });
      return;
    }
    if (file_ && files_.full()) {
      files_.when_not_full([weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->on_readable();
      });
      return;
    }
    const ReadStatus status = read_once(kReadBytes);
    if (status == ReadStatus::kEnd) {
      finish_line();
      return close();
    }
    if (status == ReadStatus::kNothing) break;
  }
  wait();
}

OutputCapture::ReadStatus OutputCapture::read_once(std::size_t limit) {
  auto& buffer = read_buffer();
  for (;;) {
    const ssize_t size =
        ::read(pipe_.native_handle(), buffer.data(), std::min(limit, buffer.size()));
    if (size > 0) {
      consume({buffer.data(), static_cast<std::size_t>(size)});
      return ReadStatus::kData;
    }
    if (size == 0) return ReadStatus::kEnd;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return ReadStatus::kNothing;
    if (errno != EINTR) return ReadStatus::kEnd;
  }
}

void OutputCapture::drain() {
  if (pipe_.is_open()) {
    // Read only what is in the pipe now: the output of the worker is there already, and a
    // grandchild may write for ever.
    int waiting = 0;
    if (::ioctl(pipe_.native_handle(), FIONREAD, &waiting) != 0) waiting = 0;
    auto left = static_cast<std::size_t>(waiting);
    while (left > 0) {
      const std::size_t size = std::min(left, kReadBytes);
      if (read_once(size) != ReadStatus::kData) break;
      left -= size;
    }
  }
  finish_line();
}

void OutputCapture::close() {
  std::error_code ignored;
  pipe_.close(ignored);
  file_.close();
}

void OutputCapture::begin_round(Route route, const std::string& separator) {
  drain();
  tail_.clear();
  exception_.clear();
  route_ = std::move(route);
  route_.to_console = route_.to_console || file_failed_;
  finish_file_line();
  write_file(separator + "\n");
}

void OutputCapture::add_lines(const std::string& lines) {
  drain();
  finish_file_line();
  const bool keep_tail = std::exchange(keep_tail_, false);
  consume(lines);
  keep_tail_ = keep_tail;
}

void OutputCapture::finish_file_line() {
  if (last_in_file_ != '\n') write_file("\n");
}

bool OutputCapture::needs_lines() const {
  return keep_tail_ || route_.filtered || (route_.to_console && route_.whole_lines);
}

std::string OutputCapture::recent() const {
  if (recent_.size() <= kRecentBytes) return recent_;
  const std::size_t begin = recent_.size() - kRecentBytes;
  const std::size_t line_end = recent_.find('\n', begin - 1);
  const bool is_one_line = line_end == std::string::npos || line_end + 1 == recent_.size();
  return recent_.substr(is_one_line ? begin : line_end + 1);
}

void OutputCapture::keep_recent(std::string_view bytes) {
  // One byte more tells whether a line begins there.
  if (bytes.size() > kRecentBytes) bytes.remove_prefix(bytes.size() - kRecentBytes - 1);
  if (recent_.size() + bytes.size() > 2 * kRecentBytes)
    recent_.erase(0, recent_.size() - std::min(recent_.size(), kRecentBytes - 1));
  recent_.append(bytes);
}

void OutputCapture::consume(std::string_view bytes) {
  write_file(bytes);
  keep_recent(bytes);
  if (route_.to_console && !route_.whole_lines) console_->write(bytes);
  if (!needs_lines()) return;
  splitter_.feed(bytes, [this](const LineSplitter::Piece& piece) { take_line(piece); });
  show_batch();
  if (splitter_.is_rewritten() && !progress_is_due_) show_progress_soon();
}

void OutputCapture::show_progress_soon() {
  if (!route_.to_console || !route_.whole_lines) return;
  progress_is_due_ = true;
  progress_timer_.after(kProgressInterval, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->progress_is_due_ = false;
    if (!self->splitter_.is_rewritten()) return;
    self->splitter_.take_early([&](const LineSplitter::Piece& piece) { self->take_line(piece); });
    self->show_batch();
  });
}

void OutputCapture::finish_line() {
  splitter_.finish([this](const LineSplitter::Piece& piece) { take_line(piece); });
  show_batch();
}

void OutputCapture::take_line(const LineSplitter::Piece& piece) {
  if (route_.to_console && route_.whole_lines) show_line(piece);
  if (route_.filtered) route_.filtered->add(route_.prefix, piece.text);
  if (!keep_tail_ || (piece.continues && !piece.resumed)) return;
  exception_.add_line(piece.text);
  tail_.add(piece.text);
}

void OutputCapture::show_line(const LineSplitter::Piece& piece) {
  std::string& batch = line_batch();
  append_line(batch, route_, piece);
  if (batch.size() >= kBatchBytes) show_batch();
}

void OutputCapture::show_batch() {
  std::string& batch = line_batch();
  if (batch.empty()) return;
  console_->write(batch);
  batch.clear();
}

void OutputCapture::write_file(std::string_view bytes) {
  if (!bytes.empty()) last_in_file_ = bytes.back();
  if (file_) file_.write(bytes);
}

}  // namespace ddp::agent
