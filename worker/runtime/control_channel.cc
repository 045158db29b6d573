#include "worker/runtime/control_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <deque>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/process/descriptor_passing.h"
#include "common/wire/control_messages.h"
#include "common/wire/frame.h"
#include "worker/runtime/trace.h"
#include "worker/runtime/waiting_time.h"
#include "worker/runtime/worker_environment.h"
#include "worker/runtime/write_error_file.h"

namespace ddp {
namespace {

constexpr Duration kProgressInterval{100};
constexpr std::size_t kBacklogLimit =
    256u << 10;  // If the agent has not read this many bytes, drop further messages.
constexpr std::size_t kErrorTextLimit = 16u << 10;

using SnapshotDone = std::function<void(const SnapshotResult&)>;

class NoChannel final : public ControlChannel {
 public:
  bool connected() const override { return false; }
  void progress(std::int64_t /*step*/, double /*loss*/, double /*samples_per_second*/,
                std::int64_t /*total_steps*/) override {}
  void progress(std::int64_t /*step*/) override {}
  void still_waits() override {}
  void error(const std::string& message, bool secondary) override {
    runtime::write_error_file(message, {}, secondary);
  }
  void joined(Round /*round*/) override {}
  void parked(Round /*round*/, std::int64_t /*step*/) override {}
  void committed(Round /*round*/, std::int64_t /*step*/) override {}
  int snapshot_limit() const override { return 0; }
  bool submit_snapshot(const SnapshotSubmission& /*snapshot*/, SnapshotDone /*done*/) override {
    return false;
  }
  std::int64_t checkpoint_requests() const override { return 0; }
};

int snapshot_limit_of_environment() {
  const std::string text = process_variable("DDP_SNAPSHOTS").value_or("");
  int limit = 0;
  std::from_chars(text.data(), text.data() + text.size(), limit);
  return std::max(limit, 0);
}

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
    fail_snapshots("the control channel was closed before the agent's answer");
  }

  bool connected() const override { return true; }

  void progress(std::int64_t step, double loss, double samples_per_second,
                std::int64_t total_steps) override {
    wire::Progress progress{step, loss, samples_per_second, total_steps, end_step(step)};
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
      told_.computed_ms = end_step(step);
      if (!progress_is_due()) return;
      progress = told_;
    }
    post(progress);
  }

  void still_waits() override {
    wire::Progress progress;
    {
      const std::lock_guard lock(mutex_);
      if (told_.step < 0 || !progress_is_due()) return;
      progress = told_;
    }
    post(progress);
  }

  void error(const std::string& message, bool secondary) override {
    runtime::write_error_file(message, {}, secondary);
    post(wire::WorkerError{message.substr(0, kErrorTextLimit), secondary});
  }

  void joined(Round round) override { post(wire::Joined{round}); }
  void parked(Round round, std::int64_t step) override { post(wire::Parked{round, step}); }
  void committed(Round round, std::int64_t step) override { post(wire::Committed{round, step}); }

  int snapshot_limit() const override { return snapshot_limit_; }

  bool submit_snapshot(const SnapshotSubmission& snapshot, SnapshotDone done) override {
    if (snapshot_limit_ == 0) return false;
    Unsent unsent{frame_of(
        wire::SubmitSnapshot{snapshot.id, snapshot.step, snapshot.bytes, snapshot.lock_fd >= 0})};
    unsent.descriptors.emplace_back(::fcntl(snapshot.memfd, F_DUPFD_CLOEXEC, 0));
    if (snapshot.lock_fd >= 0) {
      unsent.descriptors.emplace_back(::fcntl(snapshot.lock_fd, F_DUPFD_CLOEXEC, 0));
    }
    for (const UniqueFd& descriptor : unsent.descriptors) {
      if (!descriptor) return false;
    }
    bool left = false;
    {
      const std::lock_guard lock(mutex_);
      if (broken_ || agent_gone_) return false;
      if (!waiting_snapshots_.emplace(snapshot.id, std::move(done)).second) return false;
      unsent_bytes_ += unsent.bytes.size();
      unsent_.push_back(std::move(unsent));
      left = !flush();
    }
    if (left) wake();
    return true;
  }

  std::int64_t checkpoint_requests() const override { return checkpoint_requests_.load(); }

 private:
  struct Unsent {
    std::string bytes;
    std::vector<UniqueFd> descriptors = {};  // Sent with the first byte, then closed.
    std::size_t sent = 0;
  };

  static std::string frame_of(const wire::WorkerMessage& message) {
    return wire::encode_frame(wire::encode(message));
  }

  // Returns Progress::computed_ms.
  static double end_step(std::int64_t step) {
    const TimePoint now = Clock::now();
    const auto computed = runtime::computed_time(now);
    runtime::trace_step_ends(step, now);
    return std::chrono::duration<double, std::milli>(computed).count();
  }

  // Needs mutex_.
  bool progress_is_due() {
    const TimePoint now = Clock::now();
    if (now - last_progress_ < kProgressInterval) return false;
    last_progress_ = now;
    return true;
  }

  void post(const wire::WorkerMessage& message) {
    std::string frame = frame_of(message);
    bool left = false;
    {
      const std::lock_guard lock(mutex_);
      if (broken_ || unsent_bytes_ + frame.size() > kBacklogLimit) return;
      unsent_bytes_ += frame.size();
      unsent_.push_back({std::move(frame)});
      left = !flush();
    }
    if (left) wake();
  }

  // Needs mutex_. Returns whether everything has been sent; the thread sends the rest later.
  bool flush() {
    while (!unsent_.empty() && send_once(unsent_.front())) {
      if (unsent_.front().sent == unsent_.front().bytes.size()) unsent_.pop_front();
    }
    return unsent_.empty();
  }

  // Needs mutex_. Returns false if the socket is full or gone.
  bool send_once(Unsent& unsent) {
    const ssize_t count = send_with_descriptors(
        socket_.get(), std::string_view(unsent.bytes).substr(unsent.sent), unsent.descriptors);
    if (count < 0 && errno == EINTR) return true;
    if (count < 0 && errno != EAGAIN) {
      broken_ = true;
      unsent_.clear();
      unsent_bytes_ = 0;
    }
    if (count <= 0) return false;
    unsent.descriptors.clear();
    unsent.sent += static_cast<std::size_t>(count);
    unsent_bytes_ -= static_cast<std::size_t>(count);
    return true;
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
      // Once the agent is gone, wait only for the stop.
      ::poll(entries, ended_ ? 1 : 2, -1);
      std::uint64_t ignored = 0;
      (void)!::read(wake_.get(), &ignored, sizeof(ignored));
      if (!ended_ && (entries[1].revents & (POLLIN | POLLHUP | POLLERR)) != 0) read_orders();
    }
  }

  void read_orders() {
    char buffer[4096];
    std::vector<UniqueFd> came;
    const ssize_t count = receive_with_descriptors(socket_.get(), buffer, came);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
      end();
      return;
    }
    for (UniqueFd& fd : came) descriptors_.push_back(std::move(fd));
    decoder_.append({buffer, static_cast<std::size_t>(count)});
    for (;;) {
      auto payload = decoder_.next();
      if (!payload) {
        end();  // Not our protocol, so nothing that follows makes sense.
        return;
      }
      if (!*payload) return;
      obey(**payload);
    }
  }

  void end() {
    ended_ = true;
    {
      const std::lock_guard lock(mutex_);
      agent_gone_ = true;
    }
    fail_snapshots("the agent is gone, so it is not known whether the snapshot was written");
    if (orders_.on_end) orders_.on_end();
  }

  void fail_snapshots(const std::string& why) {
    std::map<std::string, SnapshotDone> failed;
    {
      const std::lock_guard lock(mutex_);
      failed.swap(waiting_snapshots_);
    }
    SnapshotResult result;
    result.error = why;
    for (const auto& [id, done] : failed) {
      if (done) done(result);
    }
  }

  void answer_snapshot(wire::SnapshotWritten written) {
    SnapshotDone done;
    {
      const std::lock_guard lock(mutex_);
      const auto found = waiting_snapshots_.find(written.id);
      if (found == waiting_snapshots_.end()) return;
      done = std::move(found->second);
      waiting_snapshots_.erase(found);
    }
    if (!done) return;
    done({written.ok, std::move(written.error), std::move(written.path), written.bytes,
          written.seconds, std::move(written.warnings)});
  }

  void obey(const std::string& payload) {
    auto order = wire::decode_worker_order(payload);
    if (!order) return;  // An order that only newer versions know.
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
    } else if (auto* written = std::get_if<wire::SnapshotWritten>(&*order)) {
      answer_snapshot(std::move(*written));
    } else if (std::holds_alternative<wire::CheckpointRequest>(*order)) {
      checkpoint_requests_.fetch_add(1);
    }
  }

  UniqueFd socket_;
  UniqueFd wake_;
  Orders orders_;
  const int snapshot_limit_ = snapshot_limit_of_environment();
  std::atomic<std::int64_t> checkpoint_requests_{0};

  // Used by the thread alone.
  wire::FrameDecoder decoder_;
  std::deque<UniqueFd> descriptors_;  // Of frames that are not complete yet.
  bool ended_ = false;

  std::mutex mutex_;  // Guards what follows.
  std::deque<Unsent> unsent_;
  std::size_t unsent_bytes_ = 0;  // Invariant: what unsent_ has left to send.
  std::map<std::string, SnapshotDone> waiting_snapshots_;  // By id.
  bool agent_gone_ = false;
  TimePoint last_progress_{};
  wire::Progress told_{-1, 0, std::nan("")};
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

std::unique_ptr<ControlChannel> ControlChannel::from_environment(Orders orders, bool reconfigurable,
                                                                 int stack_signal) {
  const auto text = process_variable("DDP_CONTROL_FD");
  if (!text) return std::make_unique<NoChannel>();
  const WorkerEnvironment worker = read_worker_environment(process_variable);
  // Use a copy: the inherited descriptor stays open until the process ends, and its closing tells
  // the agent so. Programs that the worker starts must not inherit either.
  const int inherited = control_fd(*text);
  ::fcntl(inherited, F_SETFD, FD_CLOEXEC);
  UniqueFd socket(::fcntl(inherited, F_DUPFD_CLOEXEC, 0));
  if (!socket) {
    throw std::invalid_argument(
        fmt::format("DDP_CONTROL_FD={}: {}", *text, std::generic_category().message(errno)));
  }
  wire::Hello hello{worker.rank, ::getpid(), worker.round, reconfigurable, stack_signal};
  if (is_standby()) {
    hello.rank = -1;
    hello.round = kNoRound;
  }
  return std::make_unique<SocketChannel>(std::move(socket), std::move(orders), hello);
}

}  // namespace ddp
