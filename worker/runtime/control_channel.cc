#include "worker/runtime/control_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <deque>
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
#include "worker/runtime/error_file.h"
#include "worker/runtime/worker_environment.h"

namespace ddp {
namespace {

constexpr Duration kProgressInterval{100};
constexpr std::size_t kBacklogLimit =
    256u << 10;  // An agent that does not read for so long gets no more.
constexpr std::size_t kErrorTextLimit = 16u << 10;
constexpr std::size_t kDescriptorsAtOnce = 4;

class NoChannel final : public ControlChannel {
 public:
  bool connected() const override { return false; }
  void progress(std::int64_t /*step*/, double /*loss*/, double /*samples_per_second*/) override {}
  void progress(std::int64_t /*step*/) override {}
  void error(const std::string& message, bool /*secondary*/) override { write_error_file(message); }
  void parked(Round /*round*/, std::int64_t /*step*/) override {}
  void committed(Round /*round*/, std::int64_t /*step*/) override {}
};

class SocketChannel final : public ControlChannel {
 public:
  SocketChannel(UniqueFd socket, Orders orders, const wire::Hello& hello)
      : socket_(std::move(socket)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        orders_(std::move(orders)) {
    post(hello);
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

  bool connected() const override { return true; }

  void progress(std::int64_t step, double loss, double samples_per_second) override {
    wire::Progress progress{step, loss, samples_per_second};
    {
      const std::lock_guard lock(mutex_);
      told_ = progress;
      if (!progress_is_due()) return;
    }
    post(progress);
  }

  void progress(std::int64_t step) override {
    wire::Progress progress;
    {
      const std::lock_guard lock(mutex_);
      told_.step = step;
      if (!progress_is_due()) return;
      progress = told_;
    }
    post(progress);
  }

  void error(const std::string& message, bool secondary) override {
    write_error_file(message);
    post(wire::WorkerError{message.substr(0, kErrorTextLimit), secondary});
  }

  void parked(Round round, std::int64_t step) override { post(wire::Parked{round, step}); }
  void committed(Round round, std::int64_t step) override { post(wire::Committed{round, step}); }

 private:
  // Needs mutex_.
  bool progress_is_due() {
    const TimePoint now = Clock::now();
    if (now - last_progress_ < kProgressInterval) return false;
    last_progress_ = now;
    return true;
  }

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
    const ssize_t count = receive(buffer, sizeof(buffer));
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
      end();
      return;
    }
    decoder_.append({buffer, static_cast<std::size_t>(count)});
    for (;;) {
      auto payload = decoder_.next();
      if (!payload) {
        end();  // Not our protocol: nothing that follows can be understood.
        return;
      }
      if (!*payload) return;
      obey(**payload);
    }
  }

  // As recv(). Descriptors that come along are kept in the order of their frames.
  ssize_t receive(char* buffer, std::size_t size) {
    iovec data{buffer, size};
    alignas(cmsghdr) char space[CMSG_SPACE(kDescriptorsAtOnce * sizeof(int))];
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof(space);
    const ssize_t count = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (count < 0) return count;
    for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr;
         item = CMSG_NXTHDR(&message, item)) {
      if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
      for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= item->cmsg_len; at += sizeof(int)) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(item) + at, sizeof(fd));
        descriptors_.emplace_back(fd);
      }
    }
    return count;
  }

  void end() {
    ended_ = true;
    if (orders_.on_end) orders_.on_end();
  }

  void obey(const std::string& payload) {
    auto order = wire::decode_worker_order(payload);
    if (!order) return;  // An order of a newer agent.
    if (const auto* abort = std::get_if<wire::Abort>(&*order)) {
      if (orders_.on_abort) orders_.on_abort(abort->reason);
    } else if (std::holds_alternative<wire::CommitRequest>(*order)) {
      if (orders_.on_commit_request) orders_.on_commit_request();
    } else if (auto* begun = std::get_if<wire::NewRound>(&*order)) {
      RoundPlace place{begun->round, std::move(begun->environment), {}};
      if (!descriptors_.empty()) {
        place.memory = std::move(descriptors_.front());
        descriptors_.pop_front();
      }
      if (orders_.on_new_round) orders_.on_new_round(std::move(place));
    }
  }

  UniqueFd socket_;
  UniqueFd wake_;
  Orders orders_;

  // Of the thread alone.
  wire::FrameDecoder decoder_;
  std::deque<UniqueFd> descriptors_;  // Of frames that are not complete yet.
  bool ended_ = false;

  std::mutex mutex_;  // Guards what follows.
  std::string unsent_;
  TimePoint last_progress_{};
  wire::Progress told_;
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

std::unique_ptr<ControlChannel> ControlChannel::from_environment(Orders orders,
                                                                 bool reconfigurable) {
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
  wire::Hello hello{worker.rank, ::getpid(), worker.round, reconfigurable};
  if (is_standby()) {
    hello.rank = -1;
    hello.round = kNoRound;
  }
  return std::make_unique<SocketChannel>(std::move(socket), std::move(orders), hello);
}

}  // namespace ddp
