#include "launcher/etcd/leadership.h"

#include <random>
#include <utility>

namespace ddp::etcd {
namespace {

// The limit of one request. A failed request is only repeated.
constexpr Duration kCallLimit{4'000};
constexpr Duration kRepeat{500};
// A watch at an endpoint that is cut off from its cluster is silent, so every ddp-run also reads
// the key at this interval.
constexpr Duration kLookAnyway{10'000};
// A random delay, so that not all ddp-runs that see the leader key vanish try at once.
constexpr int kJitterMs = 50;
constexpr Duration kResignLimit{1'000};
// How often the record's lease is renewed during its life.
constexpr int kRenewalsOfRecord = 24;
constexpr Duration kFirstNotice{3'000};
constexpr Duration kNoticePeriod{30'000};

Duration jitter() {
  static std::minstd_rand generator{std::random_device{}()};
  return Duration(std::uniform_int_distribution<int>(0, kJitterMs)(generator));
}

}  // namespace

Leadership::Leadership(asio::io_context& io, EtcdClient& client, LeadershipOptions options,
                       Events events)
    : client_(client),
      options_(std::move(options)),
      keys_(keys_of(options_.prefix, options_.job_id)),
      events_(std::move(events)),
      look_timer_(io),
      lease_timer_(io),
      write_timer_(io) {}

void Leadership::start() {
  started_ = Clock::now();
  next_notice_ = started_ + kFirstNotice;
  state_.record.job_id = options_.job_id;
  look();
}

// ---- who leads ----

void Leadership::look_after(Duration delay) {
  look_timer_.after(delay, [this] { look(); });
}

void Leadership::look() {
  if (phase_ != Phase::kStarting && phase_ != Phase::kFollowing) return;
  client_.end_watch();
  const Duration left =
      options_.patience - std::chrono::duration_cast<Duration>(Clock::now() - started_);
  const Duration limit = phase_ == Phase::kStarting ? std::min(left, kCallLimit) : kCallLimit;
  client_.transact({.compare = {}, .put = {}, .get = {keys_.leader, keys_.state}}, limit,
                   [this](Result<TransactionAnswer> answer) { on_look(std::move(answer)); });
}

void Leadership::look_failed(const Error& error) {
  const bool refused = error.code == Errc::kInvalidArgument || error.code == Errc::kProtocol ||
                       error.code == Errc::kCorrupt;
  if (phase_ == Phase::kStarting &&
      (refused || Clock::now() + kRepeat >= started_ + options_.patience)) {
    phase_ = Phase::kStopped;
    return events_.failed(error);
  }
  complain(error);
  look_after(kRepeat);
}

// A lease that has ended is replaced without a word.
void Leadership::complain(const Error& error) {
  if (error.code == Errc::kNotFound || Clock::now() < next_notice_) return;
  events_.notice(error.message);
  next_notice_ = Clock::now() + kNoticePeriod;
}

void Leadership::on_look(Result<TransactionAnswer> answer) {
  if (phase_ != Phase::kStarting && phase_ != Phase::kFollowing) return;
  if (!answer) return look_failed(answer.error());
  if (!read_state(answer->got[1])) return;
  if (phase_ == Phase::kStarting && state_.record.finished) {
    phase_ = Phase::kStopped;
    return events_.was_over(state_.record.result);
  }
  phase_ = Phase::kFollowing;
  if (!answer->got[0]) return stand();
  const auto leader = parse_leader(answer->got[0]->value);
  if (!leader) return look_failed(leader.error());
  follow(*leader, answer->revision);
}

// False if the key holds something that is not ours; reports that as failure.
bool Leadership::read_state(const std::optional<KeyValue>& found) {
  state_revision_ = found ? found->mod_revision : 0;
  if (!found) {
    state_ = {};
    state_.record.job_id = options_.job_id;
    return true;
  }
  auto state = parse_state(found->value);
  if (!state) {
    look_failed(make_error(Errc::kCorrupt,
                           "etcd's key {}: {}; delete it, or choose another --rdzv-id", keys_.state,
                           state.error().message));
    return false;
  }
  state_ = std::move(*state);
  return true;
}

void Leadership::follow(const Leader& leader, Revision revision) {
  if (leader_ != leader) {
    leader_ = leader;
    events_.leader(leader);
    if (stopped()) return;
  }
  client_.watch(
      keys_.leader, revision + 1, [this] { look_after(jitter()); },
      [this](const Error&) { look_after(kRepeat); });
  look_after(kLookAnyway);
}

// ---- becoming the leader ----

void Leadership::stand() {
  phase_ = Phase::kStanding;
  const std::optional<Leader> own = events_.stand();
  if (!own) {
    phase_ = Phase::kFollowing;
    return look_after(kRepeat);
  }
  own_ = *own;
  client_.grant_lease(options_.lease, kCallLimit, [this, term = term_](Result<LeaseId> lease) {
    if (phase_ != Phase::kStanding || term != term_) return;
    if (!lease) return lose(lease.error().message);
    lease_ = *lease;
    claim(*lease, own_, false);
  });
}

// `again`: this ddp-run was the leader before, and another one may not have been since; the record
// shows that.
void Leadership::claim(LeaseId lease, const Leader& own, bool again) {
  Transaction transaction{.compare = {{keys_.leader, Compare::What::kCreated, 0}},
                          .put = {{keys_.leader, to_json(own), lease}},
                          .get = {keys_.leader, keys_.state}};
  if (again) {
    transaction.compare.push_back({keys_.state, Compare::What::kModified, state_revision_});
  }
  client_.transact(transaction, kCallLimit, [=, this](Result<TransactionAnswer> answer) {
    on_claim(std::move(answer), lease, own, again);
  });
}

void Leadership::on_claim(Result<TransactionAnswer> answer, LeaseId lease, const Leader& own,
                          bool again) {
  if (phase_ != (again ? Phase::kRegaining : Phase::kStanding) || lease != lease_) return;
  if (!answer) {
    if (!again) return lose(answer.error().message);
    complain(answer.error());
    // If etcd has carried out the request, the same lease finds its own key.
    const bool lease_is_over = answer.error().code == Errc::kNotFound;
    return lease_timer_.after(kRepeat,
                              [=, this] { lease_is_over ? regain() : claim(lease, own, true); });
  }
  // If etcd carried out the request twice, the second one finds our own key.
  const bool ours = answer->got[0] && answer->got[0]->lease == lease;
  if (!ours) return lose("another ddp-run coordinates the job");
  if (again) {
    office_ = answer->got[0]->create_revision;
    return begin_leading();
  }
  if (!read_state(answer->got[1])) return lose("the job's state cannot be read");
  take_over(answer->got[0]->create_revision, own);
}

// Writes the record again before anything else, so that a late predecessor sees that it was
// replaced.
void Leadership::take_over(Revision revision, const Leader& own) {
  phase_ = Phase::kTakingOver;
  office_ = revision;
  own_ = own;
  ++state_.coordinators;
  client_.grant_lease(state_.record.finished ? options_.finished_life : options_.record_life,
                      kCallLimit, [this, term = term_](Result<LeaseId> granted) {
                        if (phase_ != Phase::kTakingOver || term != term_) return;
                        if (!granted) return lose(granted.error().message);
                        record_lease_ = *granted;
                        record_renewal_ =
                            state_.record.finished ? TimePoint::max() : TimePoint::min();
                        write_taken_over();
                      });
}

void Leadership::write_taken_over() {
  client_.transact(guarded_put(state_, record_lease_), kCallLimit,
                   [this, term = term_](Result<TransactionAnswer> answer) {
                     if (phase_ != Phase::kTakingOver || term != term_) return;
                     if (!answer) return lose(answer.error().message);
                     if (!answer->succeeded) return lose("another ddp-run coordinates the job");
                     state_revision_ = answer->revision;
                     phase_ = Phase::kLeading;
                     begin_leading();
                     events_.won(state_.record);
                     if (!leads()) return;
                     leader_ = own_;
                     events_.leader(own_);
                   });
}

Transaction Leadership::guarded_put(const StoredState& state, LeaseId lease) const {
  return {.compare = {{keys_.leader, Compare::What::kCreated, office_}},
          .put = {{keys_.state, to_json(state), lease}},
          .get = {keys_.state}};
}

void Leadership::lose(const std::string& why) {
  if (stopped()) return;
  // The key may be ours and must not block the others.
  if (lease_ != 0) client_.revoke_lease(lease_, kCallLimit, [](const Result<bool>&) {});
  ++term_;
  lease_ = 0;
  office_ = 0;
  pending_.clear();
  unconfirmed_.clear();
  writing_ = false;
  lease_timer_.cancel();
  write_timer_.cancel();
  phase_ = Phase::kFollowing;
  leader_.reset();
  events_.lost(why);
  if (phase_ == Phase::kFollowing) look_after(jitter());
}

// ---- being the leader ----

void Leadership::begin_leading() {
  phase_ = Phase::kLeading;
  lease_timer_.after(options_.lease / 3, [this] { keep_alive(); });
  watch_own_key();
  go_on();
}

// Watches the leader key, so that a replaced leader knows at once.
void Leadership::watch_own_key() {
  if (phase_ != Phase::kLeading) return;
  client_.watch(
      keys_.leader, office_ + 1, [this] { confirm([] {}); },
      [this](const Error&) { look_timer_.after(kRepeat, [this] { watch_own_key(); }); });
}

void Leadership::keep_alive() {
  if (Clock::now() >= record_renewal_) {
    record_renewal_ = Clock::now() + options_.record_life / kRenewalsOfRecord;
    client_.keep_alive(record_lease_, kCallLimit, [](const Result<std::int64_t>&) {});
  }
  client_.keep_alive(lease_, options_.lease, [this, lease = lease_](Result<std::int64_t> left) {
    if (phase_ != Phase::kLeading || lease_ != lease) return;
    if (left && *left == 0) return lease_ended();
    // Goes on whether etcd answers or not: only etcd says when the lease has ended.
    lease_timer_.after(left ? options_.lease / 3 : kRepeat, [this] { keep_alive(); });
  });
}

void Leadership::lease_ended() {
  if (phase_ != Phase::kLeading) return;
  phase_ = Phase::kRegaining;
  lease_timer_.cancel();
  regain();
}

void Leadership::regain() {
  client_.grant_lease(options_.lease, kCallLimit, [this, term = term_](Result<LeaseId> lease) {
    if (phase_ != Phase::kRegaining || term != term_) return;
    if (!lease) {
      complain(lease.error());
      return lease_timer_.after(kRepeat, [this] { regain(); });
    }
    lease_ = *lease;
    claim(*lease, own_, true);
  });
}

void Leadership::store(const rendezvous::JobRecord& record, std::function<void()> stored) {
  if (!leads()) return;
  pending_.push_back({record, std::move(stored)});
  write_next();
}

void Leadership::confirm(std::function<void()> confirmed) {
  if (!leads()) return;
  unconfirmed_.push_back(std::move(confirmed));
  ask_who_leads();
}

// An answer is one to those who have waited when the question was sent. While it is not known
// whether the leadership can be regained, they wait.
void Leadership::ask_who_leads() {
  if (unconfirmed_.empty() || phase_ != Phase::kLeading) return;
  client_.transact(
      {.compare = {{keys_.leader, Compare::What::kCreated, office_}}, .put = {}, .get = {}},
      kCallLimit,
      [this, term = term_, office = office_,
       asked = std::exchange(unconfirmed_, {})](Result<TransactionAnswer> answer) {
        if (!leads() || term != term_) return;
        if (answer && answer->succeeded) {
          for (const auto& confirmed : asked) confirmed();
          return;
        }
        unconfirmed_.insert(unconfirmed_.begin(), asked.begin(), asked.end());
        if (answer) return office == office_ ? lease_ended() : ask_who_leads();
        try_again(answer.error());
      });
}

void Leadership::go_on() {
  write_next();
  ask_who_leads();
}

void Leadership::try_again(const Error& error) {
  complain(error);
  write_timer_.after(kRepeat, [this] { go_on(); });
}

void Leadership::write_next() {
  if (pending_.empty() || writing_ || phase_ != Phase::kLeading) return;
  writing_ = true;
  const bool finished = pending_.front().record.finished;
  if (!finished && record_lease_ != 0) return write(record_lease_);
  client_.grant_lease(finished ? options_.finished_life : options_.record_life, kCallLimit,
                      [this, finished, term = term_](Result<LeaseId> lease) {
                        if (!leads() || term != term_) return;
                        if (lease) {
                          record_lease_ = *lease;
                          // A finished job's record is allowed to expire.
                          record_renewal_ = finished ? TimePoint::max() : TimePoint::min();
                          return write(*lease);
                        }
                        writing_ = false;
                        try_again(lease.error());
                      });
}

void Leadership::write(LeaseId record_lease) {
  StoredState next{pending_.front().record, state_.coordinators};
  client_.transact(guarded_put(next, record_lease), kCallLimit,
                   [this, next, term = term_, office = office_](Result<TransactionAnswer> answer) {
                     if (!leads() || term != term_) return;
                     writing_ = false;
                     if (!answer) {
                       if (answer.error().code == Errc::kNotFound) record_lease_ = 0;
                       return try_again(answer.error());
                     }
                     // Its key is gone, so its lease has ended; or it has another one by now.
                     if (!answer->succeeded)
                       return office == office_ ? lease_ended() : write_next();
                     state_ = next;
                     state_revision_ = answer->revision;
                     const auto stored = std::move(pending_.front().stored);
                     pending_.pop_front();
                     stored();
                     write_next();
                   });
}

void Leadership::stop(std::function<void()> done) {
  const LeaseId lease = std::exchange(lease_, 0);
  phase_ = Phase::kStopped;
  look_timer_.cancel();
  lease_timer_.cancel();
  write_timer_.cancel();
  client_.end_watch();
  if (lease == 0) return look_timer_.after(Duration(0), std::move(done));
  client_.revoke_lease(lease, kResignLimit,
                       [done = std::move(done)](const Result<bool>&) { done(); });
}

}  // namespace ddp::etcd
