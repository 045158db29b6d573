// What libraft asks its owner for: disk, network, time and a state machine.
#include <algorithm>
#include <chrono>
#include <cstddef>

#include "launcher/replicas/raft_member_impl.h"

namespace ddp::replicas {

// In Raft, the answer to an append says how far the log is known to be the leader's: up to the last
// entry of that append. libraft says how long the log is. Behind that point there may be entries of
// an earlier leader, and the new one would take them for its own, which the majority has then not
// got.
//
// And every answer says the own term if that is newer. libraft repeats the term that a candidate
// has asked for if it has only asked who would vote for it (pre-vote). A candidate with the newest
// log and an old term would be refused for its term for ever without learning of the newer one,
// while those that have that are refused for their logs.
void RaftMember::Impl::send(const raft_message& message) {
  RaftMessage out = from_libraft(message);
  if (out.kind == RaftMessage::Kind::kTimeoutNow) order_ = out.term;
  const bool accepts = out.kind == RaftMessage::Kind::kAppendResult && out.index == 0;
  if (accepts) out.last_index = std::min(out.last_index, known_to_match_);
  if (out.kind == RaftMessage::Kind::kVoteResult)
    out.term = std::max<std::uint64_t>(out.term, raft_.current_term);
  outcomes_.emplace_back(
      [this, to = message.server_id, out = std::move(out)] { events.send(to, out); });
}

// The log with which libraft begins.
int RaftMember::Impl::load(raft_term& term, raft_entry*& entries, std::size_t& count) const {
  term = founds_ ? 1 : 0;
  entries = nullptr;
  count = 0;
  if (!founds_) return 0;
  entries = static_cast<raft_entry*>(raft_calloc(1, sizeof(raft_entry)));
  if (entries == nullptr) return static_cast<int>(RAFT_NOMEM);
  entries->term = 1;
  set_kind(entries->type, RAFT_CHANGE);
  entries->buf = founded_;
  entries->batch = founded_.base;
  count = 1;
  return 0;
}

void RaftMember::Impl::fill_io() {
  io_.version = 1;
  io_.impl = this;
  io_.init = [](raft_io*, raft_id, const char*) { return 0; };
  io_.close = [](raft_io* io, raft_io_close_cb done) {
    of(io).completions_.emplace_back([io, done](int) { done(io); });
  };
  io_.load = [](raft_io* io, raft_term* term, raft_id* voted_for, raft_snapshot** snapshot,
                raft_index* start_index, raft_entry** entries, std::size_t* n_entries) {
    *voted_for = 0;
    *snapshot = nullptr;
    *start_index = 1;
    return of(io).load(*term, *entries, *n_entries);
  };
  io_.start = [](raft_io* io, unsigned, raft_io_tick_cb tick, raft_io_recv_cb receive) {
    of(io).tick_ = tick;
    of(io).receive_ = receive;
    return 0;
  };
  io_.bootstrap = [](raft_io* io, const raft_configuration* configuration) {
    of(io).founds_ = true;
    return raft_configuration_encode(configuration, &of(io).founded_);
  };
  io_.recover = [](raft_io*, const raft_configuration*) { return static_cast<int>(RAFT_IOERR); };
  io_.set_term = [](raft_io*, raft_term) { return 0; };
  io_.set_vote = [](raft_io*, raft_id) { return 0; };
  io_.truncate = [](raft_io*, raft_index) { return 0; };
  io_.send = [](raft_io* io, raft_io_send* request, const raft_message* message,
                raft_io_send_cb done) {
    of(io).send(*message);
    of(io).completions_.emplace_back([request, done](int status) {
      if (done != nullptr) done(request, status);
    });
    return 0;
  };
  io_.append = [](raft_io* io, raft_io_append* request, const raft_entry*, unsigned,
                  raft_io_append_cb done) {
    Impl& self = of(io);
    self.completions_.emplace_back(
        [&self, request, done, limit = self.known_to_match_](int status) {
          const std::uint64_t before = std::exchange(self.known_to_match_, limit);
          done(request, status);  // It answers the leader.
          self.known_to_match_ = before;
        });
    return 0;
  };
  // The log is never shortened.
  io_.snapshot_put = [](raft_io*, unsigned, raft_io_snapshot_put*, const raft_snapshot*,
                        raft_io_snapshot_put_cb) { return static_cast<int>(RAFT_IOERR); };
  io_.snapshot_get = [](raft_io*, raft_io_snapshot_get*, raft_io_snapshot_get_cb) {
    return static_cast<int>(RAFT_IOERR);
  };
  io_.time = [](raft_io* io) {
    const auto since = of(io).now_.time_since_epoch() + of(io).skipped_;
    return static_cast<raft_time>(std::chrono::duration_cast<Duration>(since).count());
  };
  io_.random = [](raft_io* io, int min, int max) {
    return std::uniform_int_distribution<int>(min, max)(of(io).random);
  };
}

void RaftMember::Impl::fill_fsm() {
  fsm_.version = 1;
  fsm_.data = this;
  fsm_.apply = [](raft_fsm* fsm, const raft_buffer* buffer, void** result) {
    Impl& self = *static_cast<Impl*>(fsm->data);
    *result = nullptr;
    self.outcomes_.emplace_back(
        [&self, command = std::string(static_cast<const char*>(buffer->base), buffer->len)] {
          self.events.apply(command);
        });
    return 0;
  };
  fsm_.snapshot = [](raft_fsm*, raft_buffer**, unsigned*) { return static_cast<int>(RAFT_IOERR); };
  fsm_.restore = [](raft_fsm*, raft_buffer*) { return static_cast<int>(RAFT_IOERR); };
}

// From libraft 0.18 on, requests that have ended wait in a queue, which only its own disk and
// network empties (uv.c); a raft_io of others has no function for it. The queue is a ring of {next,
// previous} through the requests, whose first fields are the same for all kinds.
void RaftMember::Impl::end_requests() {
#ifdef RAFT_VERSION_NUMBER
  void** const ring = raft_.legacy.requests;
  while (ring[0] != ring) {
    auto** const link = static_cast<void**>(ring[0]);
    static_cast<void**>(link[1])[0] = link[0];
    static_cast<void**>(link[0])[1] = link[1];
    auto* const any = reinterpret_cast<struct raft_apply*>(reinterpret_cast<char*>(link) -
                                                           offsetof(struct raft_apply, queue));
    switch (any->type) {
      case RAFT_COMMAND:
        any->cb(any, any->status, any->result);
        break;
      case RAFT_BARRIER: {
        auto* const barrier = reinterpret_cast<struct raft_barrier*>(any);
        barrier->cb(barrier, barrier->status);
        break;
      }
      case RAFT_CHANGE: {
        auto* const change = reinterpret_cast<raft_change*>(any);
        change->cb(change, change->status);
        break;
      }
      default: {
        auto* const transfer = reinterpret_cast<struct raft_transfer*>(any);
        transfer->cb(transfer);
      }
    }
  }
#endif
}

// Tells libraft what has been done for it, and then the owner what has happened. The owner may call
// in again: the loops below take that, too.
void RaftMember::Impl::settle() {
  if (std::exchange(settling_, true)) return;
  end_requests();
  while (!completions_.empty() || !outcomes_.empty()) {
    while (!completions_.empty()) {
      const auto done = std::move(completions_.front());
      completions_.pop_front();
      done(0);
    }
    end_requests();
    if (outcomes_.empty()) continue;
    const auto outcome = std::move(outcomes_.front());
    outcomes_.pop_front();
    outcome();
  }
  settling_ = false;
}

}  // namespace ddp::replicas
