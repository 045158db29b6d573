#include "worker/runtime/elastic_worker.h"

#include <fcntl.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/errc.h"
#include "common/base/parse_number.h"
#include "common/base/unique_fd.h"
#include "common/wait/wait_interrupt.h"
#include "worker/runtime/node_memory.h"
#include "worker/runtime/trace.h"
#include "worker/runtime/worker_environment.h"
#include "worker/runtime/world_group.h"

namespace ddp {

class ElasticWorker::Impl {
 public:
  explicit Impl(ElasticWorkerOptions chosen) : options(std::move(chosen)) {
    placed_ = !is_standby();
    round_ = placed_ ? read_worker_environment(process_variable).round : kNoRound;
    if (const auto fd = number_of(process_variable("DDP_SHM_FD"))) {
      memory_.reset(static_cast<int>(*fd));
      ::fcntl(memory_.get(), F_SETFD, FD_CLOEXEC);
    }
    channel = ControlChannel::from_environment(
        {.on_abort = [this](const std::string& reason) { ordered_to_abort(reason); },
         .on_commit_request = [this] { want_commit(); },
         .on_new_round = [this](RoundPlace place) { take(std::move(place)); },
         .on_end = [this] { lose_agent(); }},
        options.reconfigurable, options.stack_signal);
  }

  static std::optional<std::int64_t> number_of(const std::optional<std::string>& text) {
    return text ? parse_whole_number<std::int64_t>(*text) : std::nullopt;
  }

  bool reconfigurable() const { return options.reconfigurable && channel->connected(); }

  void wait_for_place() {
    std::unique_lock lock(mutex_);
    wait_until(lock, TimePoint::max(), [this] { return placed_ || next_ || agent_gone_; });
    if (!next_) {
      if (placed_) return;
      throw std::runtime_error("the agent is gone, so there will be no further round");
    }
    RoundPlace place = std::move(*next_);
    next_.reset();
    placed_ = true;
    round_ = place.round;
    overlay_ = std::move(place.environment);
    memory_ = std::move(place.memory);
  }

  std::shared_ptr<ProcessGroup> join() {
    wait_for_place();
    if (auto held = joined_.lock(); held && held->round() == round()) return held;
    const WorkerEnvironment worker =
        read_worker_environment([this](const std::string& name) { return variable(name); });
    // Without this, a rank that dies meanwhile would be waited for until the deadline.
    const WaitInterrupt interrupt([this] { return aborted() || given_up(); });
    std::shared_ptr<ProcessGroup> group = runtime::make_described_group(worker, options.group);
    attach(group);
    joined_ = group;
    has_committed_ = false;
    channel->joined(group->round());
    return group;
  }

  void leave(std::int64_t step, const CollectiveError& cause) {
    abort(cause.what());
    release_groups();
    if (!reconfigurable()) throw cause;
    std::unique_lock lock(mutex_);
    const bool told =
        wait_until(lock, Clock::now() + patience(cause), [this] { return is_over(); });
    if (!told || agent_gone_) throw cause;
    const Round left = round_;
    placed_ = false;
    memory_.reset();
    overlay_.clear();
    lock.unlock();
    runtime::forget_round_memory();
    channel->parked(left, step);
  }

  std::optional<std::string> variable(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    if (name == "DDP_SHM_FD") {
      if (!memory_) return {};
      return std::to_string(memory_.get());
    }
    const auto found = overlay_.find(name);
    return found == overlay_.end() ? process_variable(name) : found->second;
  }

  Round round() const {
    const std::lock_guard lock(mutex_);
    return round_;
  }

  void attach(const std::shared_ptr<ProcessGroup>& group) {
    std::string reason;
    {
      const std::lock_guard lock(mutex_);
      groups_.push_back(group);
      if (!aborted_) return;
      reason = reason_;
    }
    group->abort(reason);
  }

  void abort(const std::string& reason) {
    std::vector<std::shared_ptr<ProcessGroup>> groups;
    std::string first;
    {
      const std::lock_guard lock(mutex_);
      if (!std::exchange(aborted_, true)) reason_ = reason;
      first = reason_;
      for (const auto& group : groups_) {
        if (auto alive = group.lock()) groups.push_back(std::move(alive));
      }
    }
    for (const auto& group : groups) group->abort(first);
  }

  bool commit_requested() const {
    const std::lock_guard lock(mutex_);
    return commit_requested_;
  }

  void committed(std::int64_t step) {
    // The first commit is that of the state with which the round begins.
    if (!std::exchange(has_committed_, true)) runtime::trace_training_begins(step, Clock::now());
    channel->progress(step);
    Round round = kNoRound;
    {
      const std::lock_guard lock(mutex_);
      if (!std::exchange(commit_requested_, false)) return;
      round = round_;
    }
    channel->committed(round, step);
  }

  const ElasticWorkerOptions options;
  std::unique_ptr<ControlChannel> channel;  // Reset first: its thread uses the rest.

 private:
  // Of the training thread.
  std::weak_ptr<ProcessGroup> joined_;  // What join() has made last.
  bool has_committed_ = false;          // Since then.

  bool given_up() const { return options.given_up && options.given_up(); }

  // Returns whether `is_there`, which needs the lock. Throws if the process gives up the wait.
  template <typename Condition>
  bool wait_until(std::unique_lock<std::mutex>& lock, TimePoint limit, Condition is_there) {
    while (!is_there() && Clock::now() < limit) {
      changed_.wait_until(
          lock, options.given_up ? std::min(limit, Clock::now() + WaitInterrupt::kLook) : limit);
      if (!options.given_up || is_there()) continue;
      lock.unlock();
      const bool gives_up = options.given_up();
      lock.lock();
      if (!gives_up) continue;
      throw CollectiveError("the process was interrupted while it waited for a round",
                            Errc::kAborted, -1);
    }
    return is_there();
  }

  // The following need mutex_.
  bool is_over() const { return over_ || next_ || agent_gone_; }
  std::chrono::milliseconds patience(const CollectiveError& cause) const {
    if (cause.code == Errc::kPeerLost || cause.code == Errc::kAborted) return options.lost_limit;
    if (cause.code == Errc::kTimeout) return options.timeout_limit;
    return std::chrono::milliseconds(0);  // A mistake of the program, which would only recur.
  }

  // Afterwards nothing of the round runs in this process, even if somebody still holds a group: a
  // failed group begins no operation, and a running operation ends before the barrier's turn.
  void release_groups() {
    std::vector<std::weak_ptr<ProcessGroup>> groups;
    {
      const std::lock_guard lock(mutex_);
      groups = std::exchange(groups_, {});
    }
    for (const auto& group : groups) {
      const auto kept = group.lock();
      if (!kept) continue;
      try {
        kept->barrier()->wait();
      } catch (const CollectiveError&) {
        // The group has failed, so the barrier must fail.
      }
    }
  }

  bool aborted() const {
    const std::lock_guard lock(mutex_);
    return aborted_;
  }

  // On the channel's thread.
  void ordered_to_abort(const std::string& reason) {
    abort(reason);
    std::unique_lock lock(mutex_);
    over_ = true;
    changed_.notify_all();
    lock.unlock();
    if (options.on_abort) options.on_abort();
  }
  void want_commit() {
    const std::lock_guard lock(mutex_);
    commit_requested_ = true;
  }
  void take(RoundPlace place) {
    const std::lock_guard lock(mutex_);
    next_ = std::move(place);
    // The state below belongs to the new round.
    over_ = false;
    aborted_ = false;
    commit_requested_ = false;
    changed_.notify_all();
  }
  void lose_agent() {
    const std::lock_guard lock(mutex_);
    agent_gone_ = true;
    changed_.notify_all();
  }

  mutable std::mutex mutex_;  // Guards what follows.
  std::condition_variable changed_;
  std::optional<RoundPlace> next_;  // The round that the agent has announced.
  bool placed_ = false;             // This process has, or last had, a place in round_.
  Round round_ = kNoRound;
  std::map<std::string, std::string> overlay_;
  UniqueFd memory_;
  std::vector<std::weak_ptr<ProcessGroup>> groups_;  // Of round_.
  bool over_ = false;                                // The agent has said that round_ is over.
  bool aborted_ = false;
  std::string reason_;
  bool commit_requested_ = false;
  bool agent_gone_ = false;
};

ElasticWorker::ElasticWorker(ElasticWorkerOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
ElasticWorker::~ElasticWorker() { impl_->channel.reset(); }

bool ElasticWorker::reconfigurable() const { return impl_->reconfigurable(); }
void ElasticWorker::wait_for_place() { impl_->wait_for_place(); }
std::shared_ptr<ProcessGroup> ElasticWorker::join() { return impl_->join(); }
void ElasticWorker::leave(std::int64_t step, const CollectiveError& cause) {
  impl_->leave(step, cause);
}

std::optional<std::string> ElasticWorker::variable(const std::string& name) const {
  return impl_->variable(name);
}

std::int64_t ElasticWorker::variable_or(const std::string& name, std::int64_t otherwise) const {
  return Impl::number_of(variable(name)).value_or(otherwise);
}

Round ElasticWorker::round() const { return impl_->round(); }
void ElasticWorker::attach(const std::shared_ptr<ProcessGroup>& group) { impl_->attach(group); }
void ElasticWorker::abort(const std::string& reason) { impl_->abort(reason); }
bool ElasticWorker::commit_requested() const { return impl_->commit_requested(); }
void ElasticWorker::committed(std::int64_t step) { impl_->committed(step); }
std::int64_t ElasticWorker::checkpoint_requests() const {
  return impl_->channel->checkpoint_requests();
}
ControlChannel& ElasticWorker::channel() { return *impl_->channel; }

}  // namespace ddp
