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

}  // namespace

OutputCapture::OutputCapture(asio::io_context& io, std::shared_ptr<Console> console,
                             Options options)
    : pipe_(io),
      console_(std::move(console)),
      options_(std::move(options)),
      splitter_(console_->is_terminal() ? LineSplitter::Ends::kNewlineOrReturn
                                        : LineSplitter::Ends::kNewline),
      progress_timer_(io) {}

std::shared_ptr<OutputCapture> OutputCapture::start(asio::io_context& io, UniqueFd pipe,
                                                    std::shared_ptr<Console> console,
                                                    Options options) {
  std::shared_ptr<OutputCapture> capture(
      new OutputCapture(io, std::move(console), std::move(options)));
  ::fcntl(pipe.get(), F_SETFL, O_NONBLOCK);
  capture->pipe_.assign(pipe.release());
  capture->wait();
  return capture;
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
    if (options_.route.to_console && console_->full()) {
      console_->when_not_full([weak = weak_from_this()] {
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
  options_.file.reset();
}

void OutputCapture::begin_round(Route route, const std::string& separator) {
  drain();
  tail_.clear();
  exception_.clear();
  options_.route = std::move(route);
  finish_file_line();
  write_file(separator + "\n");
}

void OutputCapture::add_lines(const std::string& lines) {
  drain();
  finish_file_line();
  const bool keep_tail = std::exchange(options_.keep_tail, false);
  consume(lines);
  options_.keep_tail = keep_tail;
}

void OutputCapture::finish_file_line() {
  if (last_in_file_ != '\n') write_file("\n");
}

bool OutputCapture::needs_lines() const {
  const Route& route = options_.route;
  return options_.keep_tail || route.filtered || (route.to_console && route.whole_lines);
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
  if (options_.route.to_console && !options_.route.whole_lines) console_->write(bytes);
  if (!needs_lines()) return;
  splitter_.feed(bytes, [this](const LineSplitter::Piece& piece) { take_line(piece); });
  show_batch();
  if (splitter_.is_rewritten() && !progress_is_due_) show_progress_soon();
}

void OutputCapture::show_progress_soon() {
  if (!options_.route.to_console || !options_.route.whole_lines) return;
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
  const Route& route = options_.route;
  if (route.to_console && route.whole_lines) show_line(piece);
  if (route.filtered && !route.filtered->add(route.prefix, piece.text)) {
    console_->print(fmt::format("ddp-run: the file of filtered lines can no longer be written: {}",
                                std::generic_category().message(errno)));
  }
  if (!options_.keep_tail || (piece.continues && !piece.resumed)) return;
  exception_.add_line(piece.text);
  tail_.add(piece.text);
}

void OutputCapture::show_line(const LineSplitter::Piece& piece) {
  const Route& route = options_.route;
  std::string& batch = line_batch();
  route.prefix.append_to(
      batch, route.prefix.has_time() ? std::chrono::system_clock::now() : LinePrefix::WallTime{},
      piece.continues);
  batch.append(piece.text).push_back('\n');
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
  while (options_.file && !bytes.empty()) {
    const ssize_t written = ::write(options_.file.get(), bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      // The file ends here, because a hole in the middle would mislead. The console gets the rest.
      const std::string why = std::generic_category().message(errno);
      const std::string name = options_.route.prefix.name();
      console_->print(fmt::format("ddp-run: the log file of {} can no longer be written: {}",
                                  name.empty() ? "the worker" : name, why));
      options_.route.to_console = true;
      options_.file.reset();
    }
  }
}

}  // namespace ddp::agent
