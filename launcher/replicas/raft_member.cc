#include "launcher/replicas/raft_member.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/base/check.h"
#include "launcher/replicas/raft_member_impl.h"

namespace ddp::replicas {
namespace {

// A new voter that does not answer is given up after ten times this.
constexpr unsigned kCatchUpLimitMs = 500;
constexpr unsigned kNoLimit = 1u << 30;  // Entries of the log.

}  // namespace

raft_server* RaftMember::Impl::own_server() const {
  const raft_configuration& known = raft_.configuration;
  for (unsigned i = 0; i < known.n; ++i) {
    if (known.servers[i].id == id) return &known.servers[i];
  }
  return nullptr;
}

// In Raft, whether a server grants its vote does not depend on the configuration that it knows
// (Ongaro, "Consensus: Bridging Theory and Practice", 2014, section 4.1): the entry that gives it
// the right may not have come yet. libraft refuses then, and without that right it also believes
// for ever in a leader that is silent. A leader that was cut off right after that entry would never
// be elected again.
void RaftMember::Impl::vote_without_right(raft_message& request, raft_server& own) {
  const int role = std::exchange(own.role, RAFT_VOTER);
  const bool has_leader = now_ - heard_leader_ < options.election;
  if (!has_leader) request.request_vote.disrupt_leader = true;
  receive_(&io_, &request);
  if (raft_server* const again = own_server()) again->role = role;
}

// A candidate that is not elected in time stands again. In libraft it then still has what was for
// one election (Ongaro, sections 4.2.3 and 9.6): the permission to disrupt leaders, if a leader had
// told it to take over, and leave to ask for votes without first asking who would vote for it. A
// member that lags behind, or is no longer in the group, would raise its term for ever, and end the
// term of each leader that adds it again.
void RaftMember::Impl::end_candidacy() {
  if (raft_state(&raft_) != RAFT_CANDIDATE) return;
  auto& candidate = raft_.candidate_state;
  if (io_.time(&io_) - raft_.election_timer_start < candidate.randomized_election_timeout) return;
  candidate.disrupt_leader = false;
  candidate.in_pre_vote = true;
}

// A leader that has told another one to take over cannot take that back: the order may come late,
// and whoever follows it is elected although this leader is still heard. In libraft, it goes on to
// lead if nothing has happened in an election time. It would never know again that it leads. In
// another term the order is void, so this leader learns of one.
void RaftMember::Impl::abdicate() {
  if (!order_ || transferring_) return;
  const std::uint64_t term = *std::exchange(order_, std::nullopt);
  if (raft_state(&raft_) != RAFT_LEADER || raft_.current_term != term) return;
  RaftMessage newer;
  newer.kind = RaftMessage::Kind::kAppendResult;
  newer.term = term + 1;
  raft_message in = to_libraft(id, address.c_str(), newer);
  receive_(&io_, &in);
}

void RaftMember::Impl::finish(void* data, int status) {
  const std::unique_ptr<Request> request(static_cast<Request*>(data));
  request->self->outcomes_.emplace_back([done = std::move(request->done), status] {
    if (done) done(status == 0);
  });
}

template <typename Ask>
bool RaftMember::Impl::request(Callback done, Ask ask) {
  if (raft_state(&raft_) != RAFT_LEADER) return false;
  auto asked =
      std::make_unique<Request>(Request{.self = this, .done = std::move(done), .change = {}});
  if (ask(*asked) != 0) return false;
  static_cast<void>(asked.release());  // finish() frees it.
  settle();
  return true;
}

template <typename Ask>
bool RaftMember::Impl::change(Callback done, Ask ask) {
  return request(std::move(done), [&ask](Request& asked) {
    asked.change.data = &asked;
    return ask(&asked.change,
               [](raft_change* change, int status) { finish(change->data, status); });
  });
}

RaftMember::RaftMember(MemberId id, RaftOptions options, Events events)
    : impl_(std::make_unique<Impl>(id, options, std::move(events))) {
  impl_->fill_io();
  impl_->fill_fsm();
  const int status =
      raft_init(&impl_->raft_, &impl_->io_, &impl_->fsm_, id, impl_->address.c_str());
  DDP_CHECK(status == 0, "raft_init: {}", raft_strerror(status));
  raft_set_heartbeat_timeout(&impl_->raft_, static_cast<unsigned>(options.heartbeat.count()));
  raft_set_election_timeout(&impl_->raft_, static_cast<unsigned>(options.election.count()));
  raft_set_pre_vote(&impl_->raft_, true);
  raft_set_max_catch_up_round_duration(&impl_->raft_, kCatchUpLimitMs);
  raft_set_snapshot_threshold(&impl_->raft_, kNoLimit);
#ifdef RAFT_VERSION_NUMBER
  raft_set_capacity_threshold(&impl_->raft_, 0);  // Of a disk, which there is not.
#endif
}

RaftMember::~RaftMember() {
  Impl& self = *impl_;
  self.raft_.data = &self;
  raft_close(&self.raft_, [](raft* raft) { static_cast<Impl*>(raft->data)->closed_ = true; });
  while (!self.completions_.empty()) {
    const auto done = std::move(self.completions_.front());
    self.completions_.pop_front();
    done(RAFT_CANCELED);
  }
  DDP_CHECK(self.closed_, "member {}", self.id);
}

void RaftMember::start(TimePoint now, bool alone) {
  impl_->now_ = now;
  if (alone) {
    raft_configuration configuration{};
    raft_configuration_init(&configuration);
    int status =
        raft_configuration_add(&configuration, impl_->id, impl_->address.c_str(), RAFT_VOTER);
    if (status == 0) status = raft_bootstrap(&impl_->raft_, &configuration);
    DDP_CHECK(status == 0, "raft_bootstrap: {}", raft_strerror(status));
    raft_configuration_close(&configuration);
  }
  const int status = raft_start(&impl_->raft_);
  DDP_CHECK(status == 0, "raft_start: {}", raft_strerror(status));
  impl_->settle();
}

void RaftMember::tick(TimePoint now) {
  impl_->now_ = now;
  impl_->end_candidacy();
  impl_->tick_(&impl_->io_);
  impl_->abdicate();
  impl_->settle();
}

// A member that was told to take over gets its leader's vote from libraft even if that has already
// voted for another one in this term. Then there are two leaders in one term.
bool RaftMember::Impl::has_voted_for_another(MemberId from, const RaftMessage& message) const {
  return message.kind == RaftMessage::Kind::kVote && !message.pre_vote &&
         message.term == raft_.current_term && raft_.voted_for != 0 && raft_.voted_for != from;
}

void RaftMember::receive(TimePoint now, MemberId from, const RaftMessage& message) {
  impl_->now_ = now;
  if (impl_->has_voted_for_another(from, message)) return;
  const std::string address = std::to_string(from);
  raft_message in = to_libraft(from, address.c_str(), message);
  raft_server* const own = impl_->own_server();
  if (message.kind == RaftMessage::Kind::kAppend) impl_->heard_leader_ = now;
  if (message.kind == RaftMessage::Kind::kVote && own != nullptr && own->role != RAFT_VOTER) {
    impl_->vote_without_right(in, *own);
  } else {
    if (message.kind == RaftMessage::Kind::kAppend) {
      impl_->known_to_match_ = message.index + message.entries.size();
      // The same the other way round: libraft would apply entries of an earlier leader up to there.
      raft_index& commit = in.append_entries.leader_commit;
      commit = std::min<raft_index>(commit, impl_->known_to_match_);
    }
    impl_->receive_(&impl_->io_, &in);
    impl_->known_to_match_ = Impl::kEverything;
  }
  impl_->settle();
}

void RaftMember::stand(TimePoint now) {
  if (raft_state(&impl_->raft_) == RAFT_LEADER || !votes()) return;
  impl_->skipped_ += 2 * impl_->options.election;
  tick(now);
}

MemberId RaftMember::id() const { return impl_->id; }

bool RaftMember::leads() const { return raft_state(&impl_->raft_) == RAFT_LEADER; }

std::uint64_t RaftMember::term() const { return impl_->raft_.current_term; }

MemberId RaftMember::leader() const {
  raft_id id = 0;
  const char* address = nullptr;
  raft_leader(&impl_->raft_, &id, &address);
  return id;
}

TimePoint RaftMember::heard_leader() const { return impl_->heard_leader_; }

bool RaftMember::votes() const {
  const raft_server* own = impl_->own_server();
  return own != nullptr && own->role == RAFT_VOTER;
}

std::vector<RaftMember::Server> RaftMember::servers() const {
  const raft_configuration& known = impl_->raft_.configuration;
  std::vector<Server> servers;
  for (unsigned i = 0; i < known.n; ++i) {
    servers.push_back({.id = known.servers[i].id, .votes = known.servers[i].role == RAFT_VOTER});
  }
  return servers;
}

bool RaftMember::propose(std::string_view command, Callback done) {
  return impl_->request(std::move(done), [this, command](Impl::Request& asked) {
    asked.apply.data = &asked;
    const raft_buffer buffer = buffer_of(command);
    const int status = raft_apply(
        &impl_->raft_, &asked.apply, &buffer, 1,
        [](struct raft_apply* apply, int result, void*) { Impl::finish(apply->data, result); });
    if (status != 0) raft_free(buffer.base);
    return status;
  });
}

bool RaftMember::barrier(Callback done) {
  return impl_->request(std::move(done), [this](Impl::Request& asked) {
    asked.barrier.data = &asked;
    return raft_barrier(
        &impl_->raft_, &asked.barrier,
        [](struct raft_barrier* barrier, int status) { Impl::finish(barrier->data, status); });
  });
}

bool RaftMember::add(MemberId id, Callback done) {
  return impl_->change(std::move(done), [this, id](raft_change* change, raft_change_cb end) {
    return raft_add(&impl_->raft_, change, id, std::to_string(id).c_str(), end);
  });
}

bool RaftMember::give_vote(MemberId id, Callback done) {
  return impl_->change(std::move(done), [this, id](raft_change* change, raft_change_cb end) {
    return raft_assign(&impl_->raft_, change, id, RAFT_VOTER, end);
  });
}

bool RaftMember::remove(MemberId id, Callback done) {
  return impl_->change(std::move(done), [this, id](raft_change* change, raft_change_cb end) {
    return raft_remove(&impl_->raft_, change, id, end);
  });
}

void RaftMember::hand_over() {
  if (!leads() || std::exchange(impl_->transferring_, true)) return;
  impl_->transfer_.data = impl_.get();
  const int status =
      raft_transfer(&impl_->raft_, &impl_->transfer_, 0, [](struct raft_transfer* transfer) {
        static_cast<Impl*>(transfer->data)->transferring_ = false;
      });
  if (status != 0) impl_->transferring_ = false;
  impl_->settle();
}

bool RaftMember::hands_over() const {
  return impl_->transferring_ || (impl_->order_ && *impl_->order_ == impl_->raft_.current_term);
}

}  // namespace ddp::replicas
