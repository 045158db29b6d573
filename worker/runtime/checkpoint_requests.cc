#include "worker/runtime/checkpoint_requests.h"

#include <signal.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>

namespace ddp {
namespace {

// Set by signal handlers.
std::atomic<int> checkpoints_wanted = 0;
std::atomic<bool> stop_wanted = false;
std::atomic<int> stops_seen = 0;
std::atomic<pid_t> first_sender = 0;
// The process that asks for stop_wanted; 0: none. A forked child inherits the handler, but nobody
// there asks.
std::atomic<pid_t> listener = 0;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
              std::atomic<pid_t>::is_always_lock_free);

void want_checkpoint(int /*signal*/) { ++checkpoints_wanted; }

// Another thread may end the listening while this runs, and it may have looked at stop_wanted
// already. So this looks at `listener` after it has set stop_wanted, and the other one looks at
// stop_wanted after it has cleared `listener`: one of the two sees the other, and sends the signal
// again. By then it has its previous disposition.
void want_stop(int signal, siginfo_t* info, void* /*context*/) {
  const pid_t asks = listener;
  if (asks == ::getpid()) {
    const int seen = ++stops_seen;
    if (seen == 1) {
      first_sender = info->si_pid;
      stop_wanted = true;
      if (listener == 0 && stop_wanted.exchange(false)) ::raise(signal);
      return;
    }
    if (seen == 2 && info->si_pid != first_sender) return;
  }
  // This signal acts once the handler has returned.
  if (asks != 0) ::signal(signal, SIG_DFL);
  ::raise(signal);
}

// Leaves stop_wanted: end_listening() has cleared it, and what a late handler sets is for the new
// one.
void begin_to_listen() {
  stops_seen = 0;
  listener = ::getpid();
}

void end_listening() {
  listener = 0;
  if (stop_wanted.exchange(false)) ::raise(SIGTERM);
}

// Catches a signal while at least one user wants it, and then restores its previous disposition.
class Caught {
 public:
  // prepare: called before the signal is caught. finish: after its disposition is restored.
  explicit Caught(int signal, void (*prepare)() = nullptr, void (*finish)() = nullptr)
      : signal_(signal), prepare_(prepare), finish_(finish) {}

  void begin(const struct sigaction& action) {
    const std::lock_guard lock(mutex_);
    if (users_++ > 0) return;
    if (prepare_) prepare_();
    ::sigaction(signal_, &action, &former_);
  }
  void end() {
    const std::lock_guard lock(mutex_);
    if (--users_ > 0) return;
    ::sigaction(signal_, &former_, nullptr);
    if (finish_) finish_();
  }

 private:
  const int signal_;
  void (*const prepare_)();
  void (*const finish_)();
  std::mutex mutex_;
  int users_ = 0;
  struct sigaction former_ {};
};

Caught caught_usr1(SIGUSR1);
Caught caught_term(SIGTERM, begin_to_listen, end_listening);

}  // namespace

CheckpointRequests::CheckpointRequests(ControlChannel& channel, bool catches_usr1)
    : channel_(channel), catches_usr1_(catches_usr1) {
  if (!catches_usr1_) return;
  struct sigaction action = {};
  action.sa_handler = want_checkpoint;
  action.sa_flags = SA_RESTART;
  caught_usr1.begin(action);
}

CheckpointRequests::~CheckpointRequests() {
  if (catches_usr1_) caught_usr1.end();
}

CheckpointRequests::Listening::Listening(CheckpointRequests& requests) {
  requests.next_ = 0;
  requests.interval_ = 1;
  requests.last_step_ = -1;
  struct sigaction action = {};
  action.sa_sigaction = want_stop;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  caught_term.begin(action);
}

CheckpointRequests::Listening::~Listening() { caught_term.end(); }

std::int64_t CheckpointRequests::requests() const {
  return channel_.checkpoint_requests() + checkpoints_wanted;
}

// How many steps take a quarter of a second, judged by those since the last exchange. Grows slowly,
// because steps may become longer.
std::int64_t CheckpointRequests::interval(std::int64_t step) {
  constexpr double kSeconds = 0.25;
  constexpr std::int64_t kLongest = 1000;
  const TimePoint now = Clock::now();
  std::int64_t chosen = 1;
  if (last_step_ >= 0 && step > last_step_) {
    const double seconds = std::chrono::duration<double>(now - last_time_).count();
    const double steps =
        kSeconds * static_cast<double>(step - last_step_) / std::max(seconds, 1e-6);
    chosen = static_cast<std::int64_t>(std::min(steps, static_cast<double>(kLongest)));
  }
  last_step_ = step;
  last_time_ = now;
  return std::clamp<std::int64_t>(chosen, 1, std::min(2 * interval_, kLongest));
}

CheckpointRequests::Asked CheckpointRequests::after_step(ProcessGroup& group, std::int64_t step) {
  if (step < next_) return Asked::kNothing;
  const std::int64_t seen = requests();
  Asked asked = Asked::kNothing;
  if (seen > answered_) asked = Asked::kCheckpoint;
  if (stop_wanted) asked = Asked::kCheckpointAndStop;
  if (group.size() == 1) {
    answered_ = seen;
    return asked;
  }
  // The maximum of each; only rank 0 chooses the interval.
  std::array<std::int64_t, 2> numbers = {static_cast<std::int64_t>(asked),
                                         group.rank() == 0 ? interval(step) : 0};
  group
      .all_reduce({numbers.data(), numbers.size(), DType::kI64}, ReduceOp::kMax,
                  {.timeout = {}, .tag = "requests for a checkpoint"})
      ->wait();
  interval_ = numbers[1];
  next_ = step + interval_;
  answered_ = seen;
  return static_cast<Asked>(numbers[0]);
}

CheckpointRequests::Asked CheckpointRequests::own() {
  const std::int64_t seen = requests();
  const bool asked = seen > std::exchange(answered_, seen);
  if (stop_wanted) return Asked::kCheckpointAndStop;
  return asked ? Asked::kCheckpoint : Asked::kNothing;
}

bool CheckpointRequests::take_stop() { return stop_wanted.exchange(false); }

}  // namespace ddp
