#include "launcher/replicas/job_replica.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/base/fnv1a.h"
#include "common/base/json_text.h"
#include "launcher/replicas/voters.h"

namespace ddp::replicas {
namespace {

using nlohmann::json;

// A ddp-run that has been away for this long is forgotten.
constexpr Duration kForgetAfter{600'000};
// A member that did not take its vote is not asked again for this long; others are.
constexpr Duration kRefusal{5'000};
// What is longer is not told. 1,000 rounds with long reasons and full curves have a third of it.
constexpr std::size_t kMaxHistoryBytes = 4u << 20;
// When the leader is gone, its voters stand for election at different moments, so that one of them
// wins at once. They stand again and again, because one that has not yet seen the end refuses.
constexpr int kFirstStandMs = 60;
constexpr int kNextStandMs = 150;

}  // namespace

MemberId member_id(const NodeId& node_id) { return std::max<MemberId>(fnv1a(node_id), 1); }

JobReplica::JobReplica(MemberId own, HostPort at, ReplicaOptions options, Events events)
    : own_(own),
      at_(std::move(at)),
      options_(std::move(options)),
      events_(std::move(events)),
      random_(options_.raft.seed) {
  record_.job_id = options_.job_id;
}

// ---- being in a group ----

void JobReplica::found(TimePoint now) {
  now_ = now;
  has_founded_ = true;
  begin(own_);
  raft_->start(now_, true);
  look_at_office();
}

void JobReplica::join(TimePoint now) {
  now_ = now;
  begin(0);
  raft_->start(now_, false);
}

void JobReplica::begin(MemberId group) {
  group_ = group;
  announced_term_ = 0;
  record_ = {};
  record_.job_id = options_.job_id;
  places_.clear();
  gives_way_to_.reset();
  told_history_.reset();
  predecessor_ = 0;
  peers_.clear();
  stands_at_.reset();
  closed_.clear();
  refused_until_.clear();
  changing_ = false;
  first_store_ = nullptr;
  later_.clear();
  raft_ = std::make_unique<RaftMember>(
      own_, options_.raft,
      RaftMember::Events{
          .send = [this](MemberId to, const RaftMessage& message) { send_raft(to, message); },
          .apply = [this](std::string_view command) { apply(command); }});
}

void JobReplica::apply(std::string_view command) {
  if (gives_way_to_) return;
  const json in = parse_json_or_discard(command);
  if (!in.is_object()) return;  // Only members of the group can have written it.
  try {
    if (const auto record = in.find("record"); record != in.end()) record->get_to(record_);
    if (const auto place = in.find("place"); place != in.end()) {
      places_[place->at("id").get<MemberId>()] = {place->at("host").get<std::string>(),
                                                  place->at("port").get<int>()};
    }
    const auto rival = in.find("gives_way_to");
    if (rival != in.end() && record_.next_round == 0) {
      gives_way_to_ = {.group = rival->at("group").get<MemberId>(),
                       .at = {rival->at("host").get<std::string>(), rival->at("port").get<int>()},
                       .term = rival->at("term").get<std::uint64_t>()};
    }
    if (const auto gone = in.find("gone"); gone != in.end()) places_.erase(gone->get<MemberId>());
  } catch (const json::exception&) {  // Of a newer release: what is unknown is left alone.
  }
}

// If this process did not run for a while, it does not know who is alive: what has arrived
// meanwhile says nothing about now.
void JobReplica::note_pause() {
  const bool paused = now_ - std::exchange(last_tick_, now_) > pause();
  if (!paused) return;
  since_ = now_;
  changes_from_ = now_ + pause();
}

void JobReplica::tick(TimePoint now) {
  now_ = now;
  note_pause();
  raft_->tick(now);
  look_at_office();
  stand_if_leader_is_gone();
  if (!leads()) return;
  if (first_store_ && knows_all_have_begun_nothing()) std::exchange(first_store_, nullptr)();
  while (!later_.empty() && later_.front()()) later_.pop_front();
  mend_voters();
  if (now_ >= next_announcement_) announce_to_others();
}

void JobReplica::receive(TimePoint now, const ReplicaMessage& message) {
  now_ = now;
  if (message.from == own_ || message.job_id != options_.job_id) return;
  // A message that has been overtaken is dropped: libraft 0.22 may never again send entries to a
  // member whose answers change their order.
  Heard& heard = heard_from_[message.from];
  if (message.number <= heard.number) return;
  heard = {.at = message.at, .when = now_, .number = message.number};
  closed_.erase(message.from);  // It has only made another connection.
  if (message.from == gone_leader_) {
    gone_leader_ = 0;
    stands_at_.reset();
  }
  if (message.announcement) return on_announcement(message);
  if (message.history) return on_history(message);
  if (!message.raft) return;
  if (message.group != group_) {
    if (ended_groups_.contains(message.group)) return;
    // A leader adds this member to its group. A group that has begun a round is not left.
    const bool adds = message.raft->kind == RaftMessage::Kind::kAppend;
    if (!adds || office_ != Office::kNone) return;
    if (record_.next_round > 0) return tell_what_has_begun(message.at);
    leave_group_for(message.group);
  }
  raft_->receive(now_, message.from, *message.raft);
  if (const MemberId leader = raft_->leader(); leader != 0 && leader != own_) predecessor_ = leader;
  look_at_office();
}

void JobReplica::send(const HostPort& to, ReplicaMessage message) {
  message.job_id = options_.job_id;
  message.group = group_;
  message.from = own_;
  message.number = ++sent_;
  message.at = at_;
  events_.send(to, message);
}

void JobReplica::send_raft(MemberId to, const RaftMessage& message) {
  if (const auto place = place_of(to)) send(*place, {.raft = message});
}

std::optional<HostPort> JobReplica::place_of(MemberId id) const {
  if (const auto found = peers_.find(id); found != peers_.end()) return found->second.at;
  if (const auto found = places_.find(id); found != places_.end()) return found->second;
  if (const auto found = heard_from_.find(id); found != heard_from_.end()) return found->second.at;
  return std::nullopt;
}

// ---- who coordinates ----

void JobReplica::look_at_office() {
  if (gives_way_to_) return give_way();
  if (office_ != Office::kNone && (!raft_->leads() || raft_->term() != office_term_)) {
    const bool held = office_ == Office::kHeld;
    office_ = Office::kNone;
    changing_ = false;
    first_store_ = nullptr;
    later_.clear();
    peers_.clear();
    predecessor_ = 0;
    if (coordinator_ == at_) coordinator_.reset();
    if (held) events_.lost();
  }
  if (office_ == Office::kNone && raft_->leads()) take_office();
}

// What earlier leaders have stored may not have been applied here yet.
void JobReplica::take_office() {
  office_ = Office::kTaken;
  office_term_ = raft_->term();
  const bool asked = raft_->barrier([this, term = office_term_, asked = now_](bool done) {
    if (!done || office_ != Office::kTaken || office_term_ != term || gives_way_to_) return;
    if (!proves_office(asked)) {
      office_ = Office::kNone;  // The next tick asks again.
      return;
    }
    office_ = Office::kHeld;
    since_ = now_;
    coordinator_ = at_;
    announced_term_ = term;
    events_.won(record_);
    if (leads()) announce_to_others();
  });
  if (!asked) office_ = Office::kNone;  // The next tick tries again.
}

void JobReplica::on_closed(TimePoint now, const HostPort& peer) {
  now_ = now;
  note_pause();
  for (const RaftMember::Server& server : raft_->servers()) {
    if (server.id != own_ && place_of(server.id) == peer) closed_[server.id] = now_;
  }
  const MemberId leader = raft_->leader();
  if (leader == 0 || leader == own_ || place_of(leader) != peer) return;
  gone_leader_ = leader;
  stands_at_ = now_ + Duration(std::uniform_int_distribution<int>(1, kFirstStandMs)(random_));
}

void JobReplica::stand_if_leader_is_gone() {
  if (!stands_at_ || now_ < *stands_at_) return;
  const MemberId leader = raft_->leader();
  if (leader != 0 && leader != gone_leader_) return stands_at_.reset();
  stands_at_ =
      now_ + Duration(std::uniform_int_distribution<int>(kFirstStandMs, kNextStandMs)(random_));
  raft_->stand(now_);
  look_at_office();
}

void JobReplica::tell_history(const std::string& text) {
  if (!leads() || text.size() > kMaxHistoryBytes) return;
  told_history_ = {.text = text, .told = now_, .term = office_term_};
  for (const RaftMember::Server& server : raft_->servers()) {
    const auto place = place_of(server.id);
    if (server.id != own_ && server.votes && place)
      send(*place, {.history = History{.term = office_term_, .text = text}});
  }
}

void JobReplica::on_history(const ReplicaMessage& message) {
  const History& history = *message.history;
  if (message.group != group_ || history.text.size() > kMaxHistoryBytes) return;
  if (told_history_ && history.term < told_history_->term) return;
  told_history_ = {.text = history.text, .told = now_, .term = history.term};
}

void JobReplica::hand_over() { raft_->hand_over(); }

bool JobReplica::has_successor() const {
  const auto servers = raft_->servers();
  const auto voters = std::count_if(servers.begin(), servers.end(),
                                    [](const RaftMember::Server& server) { return server.votes; });
  return !leads() || voters > 2;
}

// ---- coordinating ----

void JobReplica::store(const rendezvous::JobRecord& record, std::function<void()> stored) {
  if (!leads()) return;
  if (!knows_all_have_begun_nothing()) {
    first_store_ = [this, record, stored = std::move(stored)] { store(record, stored); };
    return;
  }
  ask_now_or_later([this, command = dump_json({{"record", record}}), stored = std::move(stored)] {
    return raft_->propose(command, [this, asked = now_, stored](bool done) {
      if (done) act_in_office(asked, stored);
    });
  });
}

void JobReplica::confirm(std::function<void()> confirmed) {
  if (!leads()) return;
  ask_now_or_later([this, confirmed = std::move(confirmed)] {
    return raft_->barrier([this, asked = now_, confirmed](bool done) {
      if (done) act_in_office(asked, confirmed);
    });
  });
}

// A leader that is handing over takes nothing in. If the order was not sent in time, it goes on.
void JobReplica::ask_now_or_later(std::function<bool()> ask) {
  if (!later_.empty() || !ask()) later_.push_back(std::move(ask));
}

// A majority has answered what was asked then. Its members elect no one else for an election time
// after they have heard from their leader, unless that has told them to. If the answer comes later,
// because this process or the network stood still, there may be another leader by now; so they are
// asked again.
bool JobReplica::proves_office(TimePoint asked) const {
  if (raft_->hands_over()) return false;
  const Duration clocks_differ = options_.raft.election / 4;
  return now_ - asked < options_.raft.election - clocks_differ;
}

void JobReplica::act_in_office(TimePoint asked, const std::function<void()>& act) {
  if (gives_way_to_) return;
  if (proves_office(asked)) return act();
  confirm(act);
}

void JobReplica::tell_group(const std::string& command, std::function<void()> told) {
  ask_now_or_later([this, command, told = std::move(told)] {
    return raft_->propose(command, [this, told](bool done) {
      if (done && told && leads()) told();
    });
  });
}

void JobReplica::on_joined(TimePoint now, MemberId peer, const HostPort& at,
                           const Experience& experience) {
  now_ = now;
  if (!leads() || peer == own_) return;
  if (experience.last_round != kNoRound && record_.next_round == 0) return leave_group_for(0);
  peers_[peer] = {.at = at,
                  .is_here = true,
                  .joined = now_,
                  .must_say_what_has_begun = experience.was_joined,
                  .gone_since = {}};
  const auto known = places_.find(peer);
  if (known != places_.end() && known->second == at) {
    announce(at, true);  // It may belong to a group that has begun no round.
  } else {
    // It is told when the group knows it. If this coordinator is lost before, it goes on asking at
    // the endpoint; nobody else could tell it where the next one is.
    tell_group(dump_json({{"place", {{"id", peer}, {"host", at.host}, {"port", at.port}}}}),
               [this, at] { announce(at, true); });
  }
  mend_voters();
}

void JobReplica::on_gone(TimePoint now, MemberId peer, bool left) {
  now_ = now;
  const auto found = peers_.find(peer);
  if (!leads() || found == peers_.end()) return;
  found->second.is_here = false;
  found->second.has_left = left;
  found->second.gone_since = now_;
  if (left) tell_group(dump_json({{"gone", peer}}));
}

// A connection may break although the process lives. Then it is heard over another one by the next
// heartbeat.
TimePoint JobReplica::bearable_until(TimePoint closed) const {
  return closed + 3 * options_.raft.heartbeat / 2;
}

bool JobReplica::has_closed(MemberId id) const {
  const auto found = closed_.find(id);
  return found != closed_.end() && now_ > bearable_until(found->second);
}

std::optional<rendezvous::Silence> JobReplica::silence_of(MemberId id) const {
  const auto heard = heard_from_.find(id);
  if (id != predecessor_ || heard == heard_from_.end()) return std::nullopt;
  rendezvous::Silence silence{.since = heard->second.when};
  if (const auto closed = closed_.find(id); closed != closed_.end())
    silence.lost_from = bearable_until(closed->second);
  return silence;
}

// Those that could vote: a voter as long as it answers, and others whose agents are here.
std::set<MemberId> JobReplica::alive() const {
  std::set<MemberId> alive{own_};
  for (const auto& [id, peer] : peers_) {
    const auto refusal = refused_until_.find(id);
    const bool refuses = refusal != refused_until_.end() && now_ < refusal->second;
    // Once its silence would tell as much, its agent says more.
    const bool closed = has_closed(id) && now_ - closed_.at(id) < options_.absence;
    if (peer.is_here && !closed && !refuses) alive.insert(id);
  }
  for (const RaftMember::Server& server : raft_->servers()) {
    if (server.id == own_ || !server.votes) continue;
    const auto peer = peers_.find(server.id);
    const bool has_left = peer != peers_.end() && peer->second.has_left;
    const auto heard = heard_from_.find(server.id);
    // If its agent is back, so is its node: the ddp-run gets as long again to answer.
    const TimePoint last =
        std::max({since_, heard == heard_from_.end() ? since_ : heard->second.when,
                  peer == peers_.end() ? since_ : peer->second.joined});
    const bool is_gone = has_left || has_closed(server.id);
    if (!is_gone && now_ - last < options_.absence) {
      alive.insert(server.id);
    } else {
      alive.erase(server.id);
    }
  }
  return alive;
}

bool JobReplica::is_settled() const {
  const std::set<MemberId> all = alive();
  return leads() && !changing_ &&
         !next_voter_change(raft_->servers(), own_, all, all, options_.voters);
}

void JobReplica::mend_voters() {
  std::erase_if(peers_, [this](const auto& peer) {
    if (peer.second.is_here || now_ - peer.second.gone_since < kForgetAfter) return false;
    tell_group(dump_json({{"gone", peer.first}}));
    return true;
  });
  if (changing_ || now_ < changes_from_) return;
  const std::set<MemberId> all = alive();
  if (!next_voter_change(raft_->servers(), own_, all, all, options_.voters)) return;
  // First, everybody is asked, so that the change is not left to members that have just ended.
  changing_ = true;
  const bool begun = raft_->barrier([this, asked = now_](bool done) {
    changing_ = false;
    if (done && leads()) change_voters(asked);
  });
  if (!begun) changing_ = false;
}

void JobReplica::change_voters(TimePoint asked) {
  std::set<MemberId> answered;
  for (const auto& [id, heard] : heard_from_) {
    if (heard.when >= asked) answered.insert(id);
  }
  const auto change = next_voter_change(raft_->servers(), own_, alive(), answered, options_.voters);
  if (!change) return;
  const auto done = [this, change = *change](bool success) {
    changing_ = false;
    // If the office was lost meanwhile, that says nothing about the member.
    const bool still_leads = leads() && raft_->leads() && raft_->term() == office_term_;
    if (!success && still_leads && change.kind == VoterChange::Kind::kGiveVote)
      refused_until_[change.id] = now_ + kRefusal;
    if (success && leads()) mend_voters();
  };
  changing_ = true;
  bool begun = false;
  switch (change->kind) {
    case VoterChange::Kind::kAdd:
      begun = raft_->add(change->id, done);
      break;
    case VoterChange::Kind::kGiveVote:
      begun = raft_->give_vote(change->id, done);
      break;
    case VoterChange::Kind::kRemove:
      begun = raft_->remove(change->id, done);
      break;
  }
  if (!begun) changing_ = false;  // The next tick tries again.
}

}  // namespace ddp::replicas
