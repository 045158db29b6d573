#include "agent/process/console.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <asio/post.hpp>
#include <fmt/format.h>
#include <limits.h>

#include "common/terminal/terminal.h"

namespace ddp::agent {
namespace {

bool is_writable(int fd, int timeout_ms) {
  pollfd wait{fd, POLLOUT, 0};
  // An error counts as writable: the write then reports it.
  return ::poll(&wait, 1, timeout_ms) > 0;
}

}  // namespace

std::shared_ptr<Console> Console::open(asio::io_context& io, int fd) {
  std::shared_ptr<Console> console(new Console(io));
  console->fd_ = fd;
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    console->dead_ = true;
    return console;
  }
  const bool is_file = S_ISREG(status.st_mode) || S_ISBLK(status.st_mode);
  console->is_socket_ = S_ISSOCK(status.st_mode);
  console->is_terminal_ = ::isatty(fd) == 1;
  // O_NONBLOCK belongs to the open file description, which the shell and others share. Opening the
  // pipe or terminal again gives a description of our own. For a file we keep the shared one,
  // because its offset is shared on purpose.
  if (!is_file && !console->is_socket_) {
    const std::string path = fmt::format("/proc/self/fd/{}", fd);
    console->own_.reset(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (console->own_) console->fd_ = console->own_.get();
  }
  console->may_block_ = !is_file && !console->is_socket_ && !console->own_;
  if (is_file) {
    console->files_.emplace(io);
    console->open_file();
  }
  return console;
}

void Console::open_file() {
  UniqueFd copy(::fcntl(fd_, F_DUPFD_CLOEXEC, 3));
  if (!copy) return give_up();
  file_ =
      files_->open(std::move(copy), [weak = weak_from_this()](const FileWriter::Failure& failure) {
        const auto self = weak.lock();
        if (!self) return;
        // A full disk may have room again for what comes later.
        const int error = failure.error;
        if (error == ENOSPC || error == EDQUOT || error == EFBIG) return self->open_file();
        self->give_up();
      });
}

void Console::on_file_taken() {
  if (leaving_out_) end_leaving_out();
  if (!full()) not_full();
}

Console::Pair Console::open_standard(asio::io_context& io) {
  Pair pair{open(io, STDOUT_FILENO), nullptr};
  pair.err =
      terminal::same_stream(STDOUT_FILENO, STDERR_FILENO) ? pair.out : open(io, STDERR_FILENO);
  return pair;
}

void Console::set_stall_limit(Duration limit, std::string advice) {
  stall_limit_ = limit;
  stall_advice_ = std::move(advice);
}

// A pipe takes up to PIPE_BUF bytes as a whole or not at all, so each piece ends with a whole line.
std::size_t Console::piece_size(std::string_view bytes) const {
  if (is_socket_ || bytes.size() <= PIPE_BUF) return bytes.size();
  const auto last = bytes.rfind('\n', PIPE_BUF - 1);
  if (last != std::string_view::npos) return last + 1;
  if (may_block_) return PIPE_BUF;  // What a pipe takes at once when poll says it is writable.
  return std::min(bytes.find('\n', PIPE_BUF), bytes.size() - 1) + 1;
}

bool Console::write_some(std::string_view& bytes) {
  if (file_) file_.write(std::exchange(bytes, {}));
  while (!bytes.empty() && !dead_) {
    if (may_block_ && !is_writable(fd_, 0)) return false;
    const std::size_t size = piece_size(bytes);
    const ssize_t written = is_socket_
                                ? ::send(fd_, bytes.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL)
                                : ::write(fd_, bytes.data(), size);
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return false;
    } else if (errno != EINTR) {
      give_up();
    }
  }
  bytes = {};
  return true;
}

void Console::write(std::string_view bytes) {
  if (dead_ || bytes.empty()) return;
  if (leaving_out_) {
    bytes_left_out_ += bytes.size();
    lines_left_out_ += static_cast<std::uint64_t>(std::count(bytes.begin(), bytes.end(), '\n'));
    return;
  }
  put(bytes);
}

void Console::print(std::string_view line) {
  if (dead_) return;
  // An unfinished line of a worker is ended first.
  put(fmt::format("{}{}\n", line_begins_ ? "" : "\n", line));
}

void Console::put(std::string_view bytes) {
  const bool framed = status_shown_ || !status_.empty();
  line_begins_ = bytes.back() == '\n';
  if (framed) {
    framed_.clear();
    if (status_shown_) framed_ += terminal::kEraseLine;
    framed_ += bytes;
    status_shown_ = line_begins_ && !status_.empty();
    if (status_shown_) append_status(framed_);
    bytes = framed_;
  }
  if (queue_.empty()) {
    last_taken_ = Clock::now();
    if (write_some(bytes)) return watch_stall();
  }
  if (dead_) return;
  queue_.emplace_back(bytes);
  queued_bytes_ += bytes.size();
  wait_until_writable();
  watch_stall();
}

void Console::show_status(std::string_view text) {
  if (!is_terminal_ || dead_) return;
  if (status_ == text && status_shown_ == !text.empty()) return;
  status_ = text;
  // Behind queued bytes the status would be outdated when it is shown.
  if (!line_begins_ || !queue_.empty()) return;
  framed_.clear();
  if (status_shown_) framed_ += terminal::kEraseLine;
  status_shown_ = !status_.empty();
  if (status_shown_) append_status(framed_);
  std::string_view bytes = framed_;
  if (bytes.empty() || write_some(bytes) || dead_) return;
  queue_.emplace_back(bytes);
  queued_bytes_ += bytes.size();
  wait_until_writable();
}

void Console::append_status(std::string& bytes) const {
  bytes += terminal::cut_to_width(fd_, status_);
}

void Console::wait_until_writable() {
  if (waiting_ || dead_) return;
  if (!waiter_) {
    // A duplicate, because the waiter closes its descriptor.
    waiter_.emplace(io_);
    std::error_code error;
    waiter_->assign(::fcntl(fd_, F_DUPFD_CLOEXEC, 3), error);
    if (error) return give_up();
  }
  waiting_ = true;
  waiter_->async_wait(asio::posix::stream_descriptor::wait_write,
                      [weak = weak_from_this()](const std::error_code& error) {
                        const auto self = weak.lock();
                        if (!self) return;
                        self->waiting_ = false;
                        if (error) return self->give_up();
                        self->write_queue();
                      });
}

void Console::write_queue() {
  while (!queue_.empty()) {
    std::string_view front = std::string_view(queue_.front()).substr(front_taken_);
    const std::size_t before = front.size();
    const bool whole = write_some(front);
    if (dead_) return;
    const std::size_t taken = before - front.size();
    if (taken > 0) last_taken_ = Clock::now();
    queued_bytes_ -= taken;
    front_taken_ += taken;
    if (!whole) {
      wait_until_writable();
      break;
    }
    queue_.pop_front();
    front_taken_ = 0;
  }
  if (leaving_out_ && queue_.empty()) end_leaving_out();
  if (!full()) not_full();
}

void Console::not_full() {
  for (const auto& callback : std::exchange(not_full_callbacks_, {})) callback();
}

// Checks when the limit may have passed, and not at every write.
void Console::watch_stall() {
  if (stall_watched_ || !full() || stall_limit_ <= Duration{0}) return;
  stall_watched_ = true;
  stall_timer_.at(last_taken() + stall_limit_, [this] {
    stall_watched_ = false;
    if (dead_ || !full()) return;
    if (Clock::now() < last_taken() + stall_limit_) return watch_stall();
    leaving_out_ = true;
    not_full();
    if (files_) when_not_full([] {});  // Which ends it.
  });
}

void Console::end_leaving_out() {
  leaving_out_ = false;
  const std::uint64_t lines = std::exchange(lines_left_out_, 0);
  const std::uint64_t bytes = std::exchange(bytes_left_out_, 0);
  if (bytes == 0) return;
  print(
      fmt::format("ddp-run: {} line{} ({} bytes) of the workers were left out here, because nobody "
                  "read this output for {} s; {}",
                  lines, lines == 1 ? "" : "s", bytes,
                  static_cast<double>(stall_limit_.count()) / 1'000, stall_advice_));
}

void Console::when_not_full(std::function<void()> callback) {
  not_full_callbacks_.push_back(std::move(callback));
  if (!files_ || std::exchange(waiting_, true)) return;
  files_->when_not_full([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->waiting_ = false;
    self->on_file_taken();
  });
}

void Console::give_up() {
  dead_ = true;
  queue_.clear();
  queued_bytes_ = 0;
  front_taken_ = 0;
  for (const auto& callback : std::exchange(not_full_callbacks_, {})) asio::post(io_, callback);
}

}  // namespace ddp::agent
