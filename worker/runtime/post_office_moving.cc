// How the post office moves messages: one step over all peers, the threads that step, their sleep.
#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

#include "common/base/errc.h"
#include "common/wait/wait_interrupt.h"
#include "worker/runtime/post_office.h"
#include "worker/transport/control_links.h"
#include "worker/transport/futex.h"

namespace ddp::runtime {
namespace {

constexpr std::chrono::milliseconds kAbortCheck{20};  // Bounds how late an abort is seen.
constexpr std::chrono::microseconds kShortestSleep{50};
constexpr std::chrono::microseconds kPollLimit{500};  // A ring cannot wake a thread that polls.
constexpr unsigned kStepsPerCheck = 64;               // Of deadlines, except before sleeping.
constexpr std::chrono::microseconds kLookPause{500};
constexpr int kQuietLooks = 20;
thread_local const PostOffice* serves = nullptr;

}  // namespace

bool PostOffice::is_own_thread() const { return serves == this; }

bool PostOffice::step(bool eager) {
  if (failure_) return false;
  if (segment_->aborted()) {
    announce_ = segment_->abort_cause();
    settle(*announce_);
    return true;
  }
  bool moved = connect();
  for (std::size_t i = 0; i < active_.size() && !failure_;) {
    Peer& other = *active_[i];
    moved = move(other) || moved;
    if (failure_) return true;
    if (other.busy()) {
      ++i;
    } else {
      other.active = false;
      active_[i] = active_.back();
      active_.pop_back();
    }
  }
  if (!moved && eager) moved = pull_all();
  if (eager || ++steps_ % kStepsPerCheck == 0) check_deadlines();
  return moved;
}

bool PostOffice::connect() {
  if (!links_) return false;
  connected_.clear();
  if (auto failure = links_->step(connected_)) {
    break_down(std::move(*failure));
    return true;
  }
  for (auto& [rank, fd] : connected_) {
    peer(rank).socket = std::make_unique<PeerSocket>(std::move(fd));
  }
  return !connected_.empty();
}

bool PostOffice::move(Peer& other) {
  PeerStream* stream = other.stream();
  if (stream == nullptr) return false;
  // Read first: what the rank sent before it left is there by then.
  const bool has_left =
      other.node && segment_->has_left(other.rank - topology_.first(topology_.node()));
  bool moved = other.outbox.push(*stream, other.node.get());
  if (!failure_) moved = other.inbox.pull(*stream, other.node.get(), false) || moved;
  if (!failure_ && !moved && has_left) check_departed(other);
  if (!failure_ && !stream->ended().empty()) check_stream(other);
  return moved;
}

// Reads messages that nobody waits for yet: their senders may have to go on before this rank can.
bool PostOffice::pull_all() {
  bool moved = false;
  for (Rank rank = 0; rank < topology_.world_size() && !failure_; ++rank) {
    const bool local = topology_.node_of(rank) == topology_.node() && rank != topology_.rank();
    if (!local && !peers_[static_cast<std::size_t>(rank)]) continue;
    Peer& other = peer(rank);
    if (other.stream() == nullptr) continue;
    moved = other.inbox.pull(*other.stream(), other.node.get(), true) || moved;
  }
  return moved;
}

void PostOffice::check_stream(Peer& other) {
  if (other.node) {
    break_down({Errc::kIo, topology_.rank(),
                fmt::format("a message to rank {}: {}", other.rank, other.node->ended())});
    return;
  }
  if (!other.outbox.pending() && !other.inbox.pending()) {
    other.outbox.clear();  // Nobody is left to receive it.
    return;
  }
  const TimePoint now = Clock::now();
  if (other.ended_at == TimePoint{}) other.ended_at = now;
  if (now - other.ended_at < transport::ControlLinks::kVerdictTime) return;
  const auto with_peer = [&](const auto& work) { return work->source == other.rank; };
  const auto work = std::find_if(pending_.begin(), pending_.end(), with_peer);
  break_down({Errc::kPeerLost, other.rank,
              fmt::format("{}: rank {} on node {} is gone: {}", (*work)->name(), other.rank,
                          topology_.node_of(other.rank), other.socket->ended())});
}

void PostOffice::check_departed(Peer& other) {
  const auto with_peer = [&](const auto& work) { return work->source == other.rank; };
  const auto work = std::find_if(pending_.begin(), pending_.end(), with_peer);
  if (work == pending_.end()) return;
  break_down({Errc::kPeerLost, other.rank,
              fmt::format("{}: rank {} has left the group: it ended, or destroyed its group",
                          (*work)->name(), other.rank)});
}

void PostOffice::check_deadlines() {
  const TimePoint now = Clock::now();
  if (now < next_deadline_) return;
  next_deadline_ = TimePoint::max();
  for (const auto& work : pending_) {
    if (work->deadline <= now) {
      break_down({Errc::kTimeout, work->source,
                  fmt::format("{}: timed out after {} ms: {}", work->name(), work->timeout.count(),
                              status(*work))});
      return;
    }
    next_deadline_ = std::min(next_deadline_, work->deadline);
  }
}

std::string PostOffice::status(const MessageWork& work) {
  if (work.source == kAnyRank) return "no rank has sent a matching message";
  Peer& other = peer(work.source);
  if (other.stream() == nullptr && links_ && work.source != topology_.rank()) {
    return links_->status(work.source);
  }
  return work.kind == MessageWork::Kind::kSend ? other.outbox.status(work)
                                               : other.inbox.status(work);
}

void PostOffice::wait(MessageWork& work) {
  Lock lock(mutex_);
  prompt_ = false;
  ++waiters_;
  drive(lock, &work, TimePoint::max());
  --waiters_;
  want_thread();
}

void PostOffice::drive(Lock& lock, const MessageWork* until, TimePoint limit) {
  transport::Idle idle(segment_->doorbell(topology_.local_rank()), spin_);
  for (;;) {
    const bool moved = step(idle.armed());
    if (completed_) wake_sleepers();
    bool finished = until != nullptr ? until->done() : !busy();
    if (until == nullptr) {
      const bool limited = limit != TimePoint::max();
      finished = finished || (limited ? Clock::now() > limit : waiters_ > 0 || stopping_);
    }
    if (finished && !announce_ && untold_.empty()) return;
    if (finished && !announce_ && !tells()) return wake_thread();
    unlock(lock);
    bool given_up = false;
    if (moved) {
      idle.reset();
    } else if (idle.wait()) {
      sleep(idle, until);
      given_up = WaitInterrupt::raised_in_operation();
    }
    lock.lock();
    if (given_up && until != nullptr && !until->done()) {
      break_down({Errc::kAborted, topology_.rank(),
                  fmt::format("rank {} was interrupted while it waited for {}", topology_.rank(),
                              until->name())});
    }
  }
}

std::chrono::nanoseconds PostOffice::sleep_limit(bool polls) const {
  std::chrono::nanoseconds limit = kAbortCheck;
  const TimePoint now = Clock::now();
  const TimePoint next =
      std::min(next_deadline_, links_ ? links_->next_attempt() : TimePoint::max());
  if (next < now + limit) limit = std::max<std::chrono::nanoseconds>(next - now, kShortestSleep);
  const bool rings = std::any_of(active_.begin(), active_.end(),
                                 [](const Peer* each) { return each->node != nullptr; });
  return polls && rings ? std::min<std::chrono::nanoseconds>(limit, kPollLimit) : limit;
}

void PostOffice::collect_poll_entries(std::vector<pollfd>& entries) {
  if (links_) links_->add_poll_entries(entries);
  for (const auto& each : peers_) {
    if (!each || !each->socket || !each->socket->ended().empty()) continue;
    each->socket->check_way();
    const bool writes = each->socket->wants_write() && !each->outbox.empty();
    const int events = (each->inbox.blocked() ? 0 : POLLIN) | (writes ? POLLOUT : 0);
    if (events != 0) entries.push_back({each->socket->fd(), static_cast<short>(events), 0});
  }
}

void PostOffice::sleep(transport::Idle& idle, const MessageWork* until) {
  std::vector<pollfd> entries;
  std::chrono::nanoseconds limit{};
  {
    const Lock lock(mutex_);
    if (failure_ || (until != nullptr ? until->done() : stopping_)) return;
    collect_poll_entries(entries);
    limit = sleep_limit(!entries.empty());
    ++sleeping_;
  }
  const bool polls = !entries.empty();
  if (polls) {
    entries.push_back({wake_fd_.get(), POLLIN, 0});
    const timespec timeout{0, static_cast<long>(limit.count())};
    ::ppoll(entries.data(), entries.size(), &timeout, nullptr);
  } else {
    transport::futex_wait(segment_->doorbell(topology_.local_rank()).bell, idle.bell(), limit);
  }
  const Lock lock(mutex_);
  if (polls && links_) links_->polled(entries);
  // Only the last sleeper clears it, because it must wake the others, too.
  if (--sleeping_ == 0) {
    std::uint64_t ignored = 0;
    (void)!::read(wake_fd_.get(), &ignored, sizeof(ignored));
  }
  idle.slept();
}

void PostOffice::run_thread() {
  ::pthread_setname_np(::pthread_self(), "ddp-p2p");
  serves = this;
  Lock lock(mutex_);
  for (;;) {
    await_need(lock);
    if (stopping_) return;
    drive(lock, nullptr, TimePoint::max());
  }
}

// Sleeps until there is something to move and nobody else moves it. If callers wait for their
// operations at once, waking this thread each time would cost more than the messages. Then it looks
// by itself from time to time, as long as there are operations.
void PostOffice::await_need(Lock& lock) {
  int quiet = 0;
  for (;;) {
    const auto needed = [this] {
      return stopping_ || (busy() && waiters_ == 0) || !untold_.empty();
    };
    if (prompt_) {
      parked_ = true;
      wanted_.wait(lock, [&] { return needed() || !prompt_; });
      parked_ = false;
      if (needed()) return;
    }
    const std::uint64_t issued = issued_;
    wanted_.wait_for(lock, kLookPause, [this] { return stopping_; });
    if (needed()) {
      prompt_ = true;
      return;
    }
    quiet = issued_ == issued ? quiet + 1 : 0;
    if (quiet == kQuietLooks) prompt_ = true;
  }
}

}  // namespace ddp::runtime
