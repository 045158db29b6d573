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

namespace ddp::agent {
namespace {

bool is_writable(int fd, int timeout_ms) {
  pollfd wait{fd, POLLOUT, 0};
  // An error condition counts: the write then says which.
  return ::poll(&wait, 1, timeout_ms) > 0;
}

bool same_stream(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && !S_ISREG(a.st_mode);
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
  console->is_file_ = S_ISREG(status.st_mode) || S_ISBLK(status.st_mode);
  console->is_socket_ = S_ISSOCK(status.st_mode);
  console->is_terminal_ = ::isatty(fd) == 1;
  // O_NONBLOCK belongs to the open file description, which the shell and others share. Opening the
  // pipe or terminal again gives one that is ours alone. A file keeps its description: the offset
  // is shared on purpose.
  if (!console->is_file_ && !console->is_socket_) {
    const std::string path = fmt::format("/proc/self/fd/{}", fd);
    console->own_.reset(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (console->own_) console->fd_ = console->own_.get();
  }
  console->may_block_ = !console->is_file_ && !console->is_socket_ && !console->own_;
  return console;
}

Console::Pair Console::open_standard(asio::io_context& io) {
  Pair pair{open(io, STDOUT_FILENO), nullptr};
  struct stat out {};
  struct stat err {};
  const bool same = ::fstat(STDOUT_FILENO, &out) == 0 && ::fstat(STDERR_FILENO, &err) == 0 &&
                    same_stream(out, err);
  pair.err = same ? pair.out : open(io, STDERR_FILENO);
  return pair;
}

bool Console::write_some(std::string_view& bytes) {
  while (!bytes.empty() && !dead_) {
    std::size_t size = bytes.size();
    if (may_block_) {
      if (!is_writable(fd_, 0)) return false;
      size = std::min<std::size_t>(
          size, PIPE_BUF);  // What a pipe takes at once when poll says it is writable.
    }
    const ssize_t written = is_socket_
                                ? ::send(fd_, bytes.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL)
                                : ::write(fd_, bytes.data(), size);
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return false;
    } else if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
      bytes = {};  // A full disk may have room again for what comes later.
    } else if (errno != EINTR) {
      give_up();
    }
  }
  bytes = {};
  return true;
}

void Console::write(std::string_view bytes) {
  if (dead_) return;
  if (queue_.empty() && write_some(bytes)) return;
  queue_.emplace_back(bytes);
  queued_bytes_ += bytes.size();
  wait_until_writable();
}

void Console::wait_until_writable() {
  if (waiting_ || dead_) return;
  if (!waiter_) {
    // Of its own number: the waiter closes what it is given.
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
    std::string_view front = queue_.front();
    const std::size_t before = front.size();
    const bool whole = write_some(front);
    if (dead_) return;
    queued_bytes_ -= before - front.size();
    if (!whole) {
      queue_.front().erase(0, before - front.size());
      wait_until_writable();
      break;
    }
    queue_.pop_front();
  }
  if (full()) return;
  for (const auto& callback : std::exchange(not_full_callbacks_, {})) callback();
}

void Console::when_not_full(std::function<void()> callback) {
  not_full_callbacks_.push_back(std::move(callback));
}

bool Console::flush(Duration limit) {
  const TimePoint deadline = Clock::now() + limit;
  for (;;) {
    write_queue();
    if (queue_.empty()) return true;
    const auto left = std::chrono::ceil<Duration>(deadline - Clock::now()).count();
    if (left <= 0 || !is_writable(fd_, static_cast<int>(left))) return false;
  }
}

void Console::give_up() {
  dead_ = true;
  queue_.clear();
  queued_bytes_ = 0;
  for (const auto& callback : std::exchange(not_full_callbacks_, {})) asio::post(io_, callback);
}

}  // namespace ddp::agent
