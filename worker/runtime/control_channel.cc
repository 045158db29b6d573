#include "worker/runtime/control_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/wire/control_messages.h"
#include "common/wire/frame.h"
#include "worker/runtime/worker_environment.h"

namespace ddp {
namespace {

constexpr Duration kProgressInterval{100};
constexpr std::size_t kBacklogLimit =
    256u << 10;  // An agent that does not read for so long gets no more.
constexpr std::size_t kErrorTextLimit = 16u << 10;

class NoChannel final : public ControlChannel {
 public:
  void progress(std::int64_t /*step*/, double /*loss*/, double /*samples_per_second*/) override {}
  void error(const std::string& /*message*/, bool /*secondary*/) override {}
};

class SocketChannel final : public ControlChannel {
 public:
  SocketChannel(UniqueFd socket, Orders orders, Rank rank, Round round)
      : socket_(std::move(socket)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        orders_(std::move(orders)) {
    post(wire::Hello{rank, ::getpid(), round});
    thread_ = std::thread([this] { run_thread(); });
  }

  ~SocketChannel() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake();
    thread_.join();
  }

  void progress(std::int64_t step, double loss, double samples_per_second) override {
    {
      const std::lock_guard lock(mutex_);
      const TimePoint now = Clock::now();
      if (now - last_progress_ < kProgressInterval) return;
      last_progress_ = now;
    }
    post(wire::Progress{step, loss, samples_per_second});
  }

  void error(const std::string& message, bool secondary) override {
    post(wire::WorkerError{message.substr(0, kErrorTextLimit), secondary});
  }

 private:
  void post(const wire::WorkerMessage& message) {
    const std::string frame = wire::encode_frame(wire::encode(message));
    bool left = false;
    {
      const std::lock_guard lock(mutex_);
      if (broken_ || unsent_.size() + frame.size() > kBacklogLimit) return;
      unsent_ += frame;
      left = !flush();
    }
    if (left) wake();
  }

  // Needs mutex_. Whether everything has left; what the socket does not take now, the thread sends
  // later.
  bool flush() {
    std::size_t sent = 0;
    while (sent < unsent_.size()) {
      const ssize_t count = ::send(socket_.get(), unsent_.data() + sent, unsent_.size() - sent,
                                   MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno != EAGAIN) {
        broken_ = true;
        sent = unsent_.size();
      }
      if (count <= 0) break;
      sent += static_cast<std::size_t>(count);
    }
    unsent_.erase(0, sent);
    return unsent_.empty();
  }

  void wake() {
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof(one));
  }

  void run_thread() {
    ::pthread_setname_np(::pthread_self(), "ddp-control");
    for (;;) {
      pollfd entries[2] = {{wake_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}};
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) return;
        if (!flush()) entries[1].events |= POLLOUT;
      }
      // After the agent's end only stopping is waited for.
      ::poll(entries, ended_ ? 1 : 2, -1);
      std::uint64_t ignored = 0;
      (void)!::read(wake_.get(), &ignored, sizeof(ignored));
      if (!ended_ && (entries[1].revents & (POLLIN | POLLHUP | POLLERR)) != 0) read_orders();
    }
  }

  void read_orders() {
    char buffer[4096];
    const ssize_t count = ::recv(socket_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
      ended_ = true;
      return;
    }
    decoder_.append({buffer, static_cast<std::size_t>(count)});
    for (;;) {
      auto payload = decoder_.next();
      if (!payload) {
        ended_ = true;  // Not our protocol: nothing that follows can be understood.
        return;
      }
      if (!*payload) return;
      obey(**payload);
    }
  }

  void obey(const std::string& payload) {
    const auto order = wire::decode_worker_order(payload);
    if (!order) return;  // An order of a newer agent.
    if (const auto* abort = std::get_if<wire::Abort>(&*order)) {
      if (orders_.on_abort) orders_.on_abort(abort->reason);
    } else if (orders_.on_commit_request) {
      orders_.on_commit_request();
    }
  }

  UniqueFd socket_;
  UniqueFd wake_;
  Orders orders_;

  // Of the thread alone.
  wire::FrameDecoder decoder_;
  bool ended_ = false;

  std::mutex mutex_;  // Guards what follows.
  std::string unsent_;
  TimePoint last_progress_{};
  bool broken_ = false;
  bool stopping_ = false;

  std::thread thread_;  // Last: it uses everything above.
};

int control_fd(const std::string& text) {
  char* end = nullptr;
  const long fd = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || fd < 0 || ::fcntl(static_cast<int>(fd), F_GETFD) < 0) {
    throw std::invalid_argument(
        fmt::format("DDP_CONTROL_FD={}: expected an open file descriptor", text));
  }
  return static_cast<int>(fd);
}

}  // namespace

std::unique_ptr<ControlChannel> ControlChannel::from_environment(Orders orders) {
  const auto text = process_variable("DDP_CONTROL_FD");
  if (!text) return std::make_unique<NoChannel>();
  const WorkerEnvironment worker = read_worker_environment(process_variable);
  // A copy: the inherited descriptor stays open until the process ends, which is what tells the
  // agent that it has. Not for programs that the worker starts.
  const int inherited = control_fd(*text);
  ::fcntl(inherited, F_SETFD, FD_CLOEXEC);
  UniqueFd socket(::fcntl(inherited, F_DUPFD_CLOEXEC, 0));
  if (!socket) {
    throw std::invalid_argument(
        fmt::format("DDP_CONTROL_FD={}: {}", *text, std::generic_category().message(errno)));
  }
  return std::make_unique<SocketChannel>(std::move(socket), std::move(orders), worker.rank,
                                         worker.round);
}

}  // namespace ddp
