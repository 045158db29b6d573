#include "agent/process/stack_dump.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <asio/post.hpp>
#include <fmt/format.h>

namespace ddp::agent {
namespace {

// The rest of the helper's life. It uses nothing of the parent's except a copy of its memory.
[[noreturn]] void be_helper(const StackSource& source, int out) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Otherwise pipes of workers would stay open as long as this process lives.
  if (::dup2(out, 3) == 3) ::syscall(SYS_close_range, 4U, ~0U, 0);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGCHLD}) ::signal(number, SIG_DFL);
  ask_for_stacks(source);
  write_stacks(source.pid, 3);
  ::_exit(0);
}

}  // namespace

StackDump::StackDump(asio::io_context& io, std::function<void(std::string)> done)
    : io_(io), done_(std::move(done)), pipe_(io), timer_(io) {}

StackDump::~StackDump() {
  if (helper_) ::syscall(SYS_pidfd_send_signal, helper_.get(), SIGKILL, nullptr, 0);
}

std::shared_ptr<StackDump> StackDump::start(asio::io_context& io, const StackSource& source,
                                            std::function<void(std::string)> done) {
  std::shared_ptr<StackDump> dump(new StackDump(io, std::move(done)));
  dump->run(source);
  return dump;
}

void StackDump::run(const StackSource& source) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    const std::string why = std::generic_category().message(errno);
    asio::post(io_, [weak = weak_from_this(), why] {
      if (const auto self = weak.lock()) self->finish(why);
    });
    return;
  }
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t helper = ::fork();
  if (helper == 0) be_helper(source, write_end.get());
  // The helper is not reaped yet, because that happens on this thread.
  if (helper > 0) helper_.reset(static_cast<int>(::syscall(SYS_pidfd_open, helper, 0)));
  ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  pipe_.assign(read_end.release());
  timer_.after(kLimit, [weak = weak_from_this()] {
    if (const auto self = weak.lock())
      self->finish(fmt::format("reading them took longer than {} s", kLimit.count() / 1'000));
  });
  write_end.reset();
  wait();
}

void StackDump::wait() {
  pipe_.async_wait(asio::posix::stream_descriptor::wait_read,
                   [weak = weak_from_this()](const std::error_code& error) {
                     const auto self = weak.lock();
                     if (self && !error) self->on_readable();
                   });
}

void StackDump::on_readable() {
  char buffer[16 * 1024];
  for (;;) {
    const ssize_t size = ::read(pipe_.native_handle(), buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return wait();
    if (size <= 0) return finish(text_.empty() ? "the process that reads them ended" : "");
    text_.append(buffer, static_cast<std::size_t>(size));
    if (text_.size() >= kMaxBytes) return finish("they are longer than the limit");
  }
}

void StackDump::finish(const std::string& why) {
  if (!done_) return;
  std::error_code ignored;
  pipe_.close(ignored);
  timer_.cancel();
  if (helper_) ::syscall(SYS_pidfd_send_signal, helper_.get(), SIGKILL, nullptr, 0);
  helper_.reset();
  text_.resize(text_.size() < kMaxBytes ? text_.size() : kMaxBytes);
  if (!text_.empty() && text_.back() != '\n') text_ += '\n';
  if (!why.empty()) text_ += fmt::format("the stacks are not complete: {}\n", why);
  std::exchange(done_, nullptr)(std::move(text_));
}

}  // namespace ddp::agent
