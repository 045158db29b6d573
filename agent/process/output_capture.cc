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

// One buffer serves all streams: nothing stays in it between two reads, and all are read by one
// thread.
std::array<char, kReadBytes>& read_buffer() {
  static std::array<char, kReadBytes> buffer;
  return buffer;
}

}  // namespace

OutputCapture::OutputCapture(asio::io_context& io, std::shared_ptr<Console> console,
                             Options options)
    : pipe_(io),
      console_(std::move(console)),
      options_(std::move(options)),
      splitter_(console_->is_terminal() ? LineSplitter::Ends::kNewlineOrReturn
                                        : LineSplitter::Ends::kNewline) {}

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
    if (console_->full()) {
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
    // A grandchild may keep writing for ever; what the worker wrote is in the pipe already.
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

void OutputCapture::begin_round(std::string prefix, const std::string& separator) {
  drain();
  tail_.clear();
  exception_.clear();
  options_.prefix = std::move(prefix);
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

void OutputCapture::consume(std::string_view bytes) {
  write_file(bytes);
  if (options_.prefix.empty()) console_->write(bytes);
  if (options_.prefix.empty() && !options_.keep_tail) return;
  splitter_.feed(bytes, [this](const LineSplitter::Piece& piece) { emit_line(piece); });
}

void OutputCapture::finish_line() {
  splitter_.finish([this](const LineSplitter::Piece& piece) { emit_line(piece); });
}

void OutputCapture::emit_line(const LineSplitter::Piece& piece) {
  if (!options_.prefix.empty()) {
    scratch_.assign(options_.prefix);
    if (piece.continues) scratch_.insert(scratch_.size() - 1, 1, '+');
    scratch_.append(piece.text).push_back('\n');
    console_->write(scratch_);
  }
  if (!options_.keep_tail || piece.continues) return;
  exception_.add_line(piece.text);
  tail_.emplace_back(piece.text.substr(0, kTailLineBytes));
  if (tail_.size() > kTailLines) tail_.pop_front();
}

void OutputCapture::write_file(std::string_view bytes) {
  if (!bytes.empty()) last_in_file_ = bytes.back();
  while (options_.file && !bytes.empty()) {
    const ssize_t written = ::write(options_.file.get(), bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      // The console still has the output; a file with a hole in the middle would mislead.
      console_->write(fmt::format("ddp-run: the log file of {}cannot be written any more: {}\n",
                                  options_.prefix, std::generic_category().message(errno)));
      options_.file.reset();
    }
  }
}

}  // namespace ddp::agent
