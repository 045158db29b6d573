#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "launcher/rendezvous/job_record.h"
#include "launcher/rendezvous/silence.h"
#include "launcher/replicas/raft_member.h"
#include "launcher/replicas/replica_message.h"

namespace ddp::replicas {

// The id of a ddp-run's member, from its random NodeId.
MemberId member_id(const NodeId& node_id);

struct ReplicaOptions {
  std::string job_id;
  RaftOptions raft;
  int voters = 3;  // How many members decide; odd.
  // Where new nodes look for the rendezvous.
  HostPort endpoint{};
  // A voter that does not answer keeps its vote this long.
  Duration absence{1'000};
  // How often the coordinator tells those who may not know that it is the coordinator.
  Duration announcement{500};
};

// What an agent has seen of the job when it joins.
struct Experience {
  bool was_joined = false;  // To this or another coordinator.
  Round last_round = kNoRound;
};

// One ddp-run's part in deciding which ddp-run coordinates the job, without a service beside the
// job. The first ddp-run founds a group of one (Raft) and leads it. It adds others as their agents
// join; `voters` of them decide by majority. If the leader is lost, the others elect another one,
// which has the job's record, and every change of the record needs a majority. So there are never
// two coordinators that both begin rounds.
//
// Messages and time in, messages out: no socket, clock or thread. Events come from inside the
// calls. A callback may call any member function, but not destroy this object.
class JobReplica {
 public:
  struct Events {
    // May be lost.
    std::function<void(const HostPort& to, const ReplicaMessage& message)> send;
    // This ddp-run coordinates the job from now on; `record` is what its predecessors have left.
    // See also told_history().
    std::function<void(const rendezvous::JobRecord& record)> won;
    // Another one may coordinate it from now on. Stores that have not called back never do.
    std::function<void()> lost;
    // Another ddp-run coordinates the job; its daemon is there. Not called for the first one, which
    // is at the endpoint.
    std::function<void(const HostPort& at)> moved;
  };

  JobReplica(MemberId own, HostPort at, ReplicaOptions options, Events events);

  // This ddp-run is the first of the job, as far as it knows.
  void found(TimePoint now);
  // It waits to be added.
  void join(TimePoint now);
  // Call it every few tens of milliseconds.
  void tick(TimePoint now);
  void receive(TimePoint now, const ReplicaMessage& message);
  // The process at the other end has closed the connection, so it has probably ended.
  void on_closed(TimePoint now, const HostPort& peer);
  // An agent joins here. Its ddp-run is reached there. If this ddp-run has taken itself for the
  // first of a job, it may learn that it is not; then it waits for the coordinator to say where it
  // is.
  void on_joined(TimePoint now, MemberId peer, const HostPort& at, const Experience& experience);
  // Its last connection is gone. `left`: it will not come back.
  void on_gone(TimePoint now, MemberId peer, bool left);

  bool leads() const { return office_ == Office::kHeld; }
  // Whether another member can lead if this one, which leads, ends now.
  bool has_successor() const;
  // It leads, and the right members vote.
  bool is_settled() const;
  // The group, as far as this member knows.
  std::vector<RaftMember::Server> servers() const { return raft_->servers(); }
  // Where the coordinator is, as far as is known.
  const std::optional<HostPort>& coordinator() const { return coordinator_; }
  // Only while leads(), and one at a time. Calls back when a majority has the record. Does not call
  // back if the leadership is lost first.
  void store(const rendezvous::JobRecord& record, std::function<void()> stored);
  // If the member coordinated the job right before this one, and is not heard any more. One that
  // has closed its connections has probably ended.
  std::optional<rendezvous::Silence> silence_of(MemberId id) const;
  // Only while leads(): makes sure that no other one leads.
  void confirm(std::function<void()> confirmed);
  // Only while leads(): sends it to all that might lead next. It may be lost, and each call
  // replaces what was told before.
  void tell_history(const std::string& text);
  // What a coordinator of this group has told last, and when; nothing if none has.
  struct ToldHistory {
    std::string text;
    TimePoint told;
    std::uint64_t term = 0;  // Of that coordinator.
  };
  const std::optional<ToldHistory>& told_history() const { return told_history_; }
  // Lets another one lead, if there is one. Does not wait for it. If that one does not take over,
  // the office is lost before anybody is elected.
  void hand_over();

 private:
  enum class Office { kNone, kTaken, kHeld };  // kTaken: elected, but the record may be old.
  struct Peer {
    HostPort at;
    bool is_here = false;  // Its agent is joined to this coordinator.
    TimePoint joined;      // When it did last.
    // It was joined to an earlier coordinator, and may know of a group that has begun the job.
    bool must_say_what_has_begun = false;
    bool has_left = false;
    TimePoint gone_since;
  };

  void begin(MemberId group);
  void leave_group_for(MemberId group);
  void apply(std::string_view command);
  void meet_rival(const ReplicaMessage& message);
  void give_way();
  void look_at_office();
  void take_office();
  void note_pause();
  void send(const HostPort& to, ReplicaMessage message);
  void send_raft(MemberId to, const RaftMessage& message);
  // `told`: when a majority has the command, if this one still leads.
  void tell_group(const std::string& command, std::function<void()> told = {});
  void ask_now_or_later(std::function<bool()> ask);
  bool proves_office(TimePoint asked) const;
  void act_in_office(TimePoint asked, const std::function<void()>& act);
  void announce(const HostPort& to, bool has_your_agent = false);
  void announce_to_others();
  void mend_voters();
  void change_voters(TimePoint asked);
  void tell_what_has_begun(const HostPort& to);
  bool knows_all_have_begun_nothing() const;
  void on_announcement(const ReplicaMessage& message);
  void heed(const ReplicaMessage& announcement);
  void on_history(const ReplicaMessage& message);
  void stand_if_leader_is_gone();
  TimePoint bearable_until(TimePoint closed) const;
  bool has_closed(MemberId id) const;
  std::set<MemberId> alive() const;
  // This process has not run if it has not ticked for this long.
  Duration pause() const { return 4 * options_.raft.heartbeat; }
  std::optional<HostPort> place_of(MemberId id) const;

  const MemberId own_;
  const HostPort at_;
  const ReplicaOptions options_;
  const Events events_;
  std::minstd_rand random_;

  TimePoint now_;
  TimePoint last_tick_;
  TimePoint changes_from_;  // No voter is changed before.
  MemberId group_ = 0;
  bool has_founded_ = false;  // A group, at some time.
  std::unique_ptr<RaftMember> raft_;
  Office office_ = Office::kNone;
  std::uint64_t office_term_ = 0;
  TimePoint since_;  // When the office was taken, or this process ran again after a pause.
  std::uint64_t announced_term_ = 0;
  std::optional<HostPort> coordinator_;
  // The group's state: the same on all its members.
  rendezvous::JobRecord record_;
  std::map<MemberId, HostPort> places_;  // Of the ddp-runs of the job.
  struct Rival {
    MemberId group = 0;
    HostPort at;  // Its coordinator.
    std::uint64_t term = 0;
  };
  std::optional<Rival> gives_way_to_;  // This group has ended.
  // This member's own.
  // Never entered again: this member has forgotten what it had voted and stored there.
  std::set<MemberId> ended_groups_;
  std::optional<ToldHistory> told_history_;
  std::map<MemberId, Peer> peers_;  // Of those that have come to this coordinator.
  struct Heard {
    HostPort at;
    TimePoint when;            // The last time.
    std::uint64_t number = 0;  // Of the last message.
  };
  std::map<MemberId, Heard> heard_from_;
  MemberId predecessor_ = 0;  // Has led the group last, if it was not this one.
  std::uint64_t sent_ = 0;    // Messages.
  bool changing_ = false;
  std::function<void()> first_store_;        // Waits for knows_all_have_begun_nothing().
  std::deque<std::function<bool()>> later_;  // False: it must be asked again.
  TimePoint next_announcement_;
  unsigned announcements_ = 0;
  MemberId gone_leader_ = 0;
  // Members that have closed the connection to them, and have not been heard since, with the time.
  std::map<MemberId, TimePoint> closed_;
  std::map<MemberId, TimePoint> refused_until_;  // Members that did not take their votes.
  std::optional<TimePoint> stands_at_;
};

}  // namespace ddp::replicas
