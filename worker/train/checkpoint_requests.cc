#include "worker/train/checkpoint_requests.h"

#include <signal.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <atomic>

namespace ddp::train {
namespace {

// Set by handlers.
std::atomic<int> checkpoints_wanted = 0;
std::atomic<bool> stop_wanted = false;
std::atomic<int> stops_seen = 0;
std::atomic<pid_t> first_sender = 0;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
              std::atomic<pid_t>::is_always_lock_free);

void handle(int signal, void (*handler)(int), int flags) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  ::sigaction(signal, &action, nullptr);
}

void want_checkpoint(int /*signal*/) { ++checkpoints_wanted; }

void want_stop(int signal, siginfo_t* info, void* /*context*/) {
  const int seen = ++stops_seen;
  if (seen == 1) {
    first_sender = info->si_pid;
    stop_wanted = true;
    return;
  }
  if (seen == 2 && info->si_pid != first_sender) return;
  // It ends the process when this handler has returned.
  handle(signal, SIG_DFL, 0);
  ::raise(signal);
}

void handle_stop() {
  struct sigaction action = {};
  action.sa_sigaction = want_stop;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  ::sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

CheckpointRequests::CheckpointRequests(ControlChannel& channel) : channel_(channel) {
  handle(SIGUSR1, want_checkpoint, SA_RESTART);
}

CheckpointRequests::~CheckpointRequests() { handle(SIGUSR1, SIG_DFL, 0); }

CheckpointRequests::Listening::Listening(CheckpointRequests& requests) : requests_(requests) {
  stop_wanted = false;
  requests_.next_ = 0;
  requests_.interval_ = 1;
  requests_.last_step_ = -1;
  stops_seen = 0;
  handle_stop();
}

CheckpointRequests::Listening::~Listening() {
  handle(SIGTERM, SIG_DFL, 0);
  if (stop_wanted.exchange(false)) ::raise(SIGTERM);
}

std::int64_t CheckpointRequests::requests() const {
  return channel_.checkpoint_requests() + checkpoints_wanted;
}

// Steps that take a quarter of a second, by those since the last talk. Grows slowly: steps may
// become longer.
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
  // The greatest of each; only rank 0 chooses the interval.
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

bool CheckpointRequests::take_stop() { return stop_wanted.exchange(false); }

}  // namespace ddp::train
