#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "launcher/replicas/job_replica.h"
#include "launcher/replicas/replica_message.h"

// Several JobReplicas without a network.
namespace ddp::replicas {

// A coordinator and two others, whose messages the test delivers.
class Office {
 public:
  explicit Office(MemberId members = 3, MemberId founder = 1) : founder_(founder) {
    make(founder);
    coordinator().found(now_);
    for (MemberId id = 2; id <= members; ++id) welcome(id);
    for (int i = 0; i < 50; ++i) pass(Duration(20));
  }
  JobReplica& coordinator() { return *replicas_[founder_]; }
  JobReplica& of(MemberId id) { return *replicas_.at(id); }
  TimePoint now() const { return now_; }
  void found(MemberId id) {
    make(id);
    replicas_[id]->found(now_);
  }
  void deliver() {
    while (!on_its_way_.empty()) {
      const auto [to, message] = on_its_way_.front();
      on_its_way_.pop_front();
      const auto receiver = replicas_.find(static_cast<MemberId>(to));
      if (receiver != replicas_.end() && receiver->first != silent_)
        receiver->second->receive(now_, message);
    }
  }
  void stand_still(Duration time) { now_ += time; }
  // The coordinator sends what libraft has kept back for the next heartbeat.
  void beat() {
    now_ += Duration(120);
    coordinator().tick(now_);
  }
  // One turn of everybody.
  void pass(Duration time) {
    turn(time);
    deliver();
  }
  // The same, but what they send stays on its way.
  void turn(Duration time) {
    now_ += time;
    for (const auto& [id, replica] : replicas_) replica->tick(now_);
  }
  // Nothing reaches the member any more.
  void silence(MemberId member) { silent_ = member; }
  // What others have received and answered, but the coordinator has not.
  void let_others_answer() {
    std::deque<std::pair<int, ReplicaMessage>> answers;
    while (!on_its_way_.empty()) {
      const auto [to, message] = on_its_way_.front();
      on_its_way_.pop_front();
      if (static_cast<MemberId>(to) == founder_) {
        answers.emplace_back(to, message);
      } else {
        replicas_.at(static_cast<MemberId>(to))->receive(now_, message);
      }
    }
    on_its_way_ = answers;
  }
  // Its machine is gone.
  void vanish(MemberId member) { replicas_.erase(member); }
  // The process ends, and the kernel closes its connections.
  void end(MemberId member) {
    vanish(member);
    for (const auto& [id, replica] : replicas_)
      replica->on_closed(now_, {.host = "n", .port = static_cast<int>(member)});
  }
  bool is_silent() const { return on_its_way_.empty(); }
  // What was sent last; it stays on its way.
  ReplicaMessage last_sent() const { return on_its_way_.back().second; }
  void receive_one() {
    const auto [to, message] = on_its_way_.front();
    on_its_way_.pop_front();
    const auto receiver = replicas_.find(static_cast<MemberId>(to));
    if (receiver != replicas_.end()) receiver->second->receive(now_, message);
  }
  // Where the member was last told that the coordinator is: the id of that one. 0: nowhere.
  MemberId told_of(MemberId id) { return static_cast<MemberId>(moved_[id]); }
  bool is_being_told(MemberId member) const {
    return std::any_of(on_its_way_.begin(), on_its_way_.end(), [member](const auto& sent) {
      return static_cast<MemberId>(sent.first) == member && sent.second.announcement;
    });
  }
  // The agent of a new ddp-run joins.
  void welcome(MemberId id) {
    make(id);
    replicas_[id]->join(now_);
    coordinator().on_joined(now_, id, {.host = "n", .port = static_cast<int>(id)}, {});
  }

 private:
  void make(MemberId id) {
    replicas_[id] = std::make_unique<JobReplica>(
        id, HostPort{.host = "n", .port = static_cast<int>(id)},
        ReplicaOptions{.job_id = "job", .raft = {.seed = static_cast<std::uint32_t>(id)}},
        JobReplica::Events{.send =
                               [this](const HostPort& to, const ReplicaMessage& message) {
                                 on_its_way_.emplace_back(to.port, message);
                               },
                           .won = [](const rendezvous::JobRecord&) {},
                           .lost = [] {},
                           .moved = [this, id](const HostPort& at) { moved_[id] = at.port; }});
  }

  const MemberId founder_;
  TimePoint now_{Duration(1'000'000)};
  std::map<MemberId, std::unique_ptr<JobReplica>> replicas_;
  std::deque<std::pair<int, ReplicaMessage>> on_its_way_;
  std::map<MemberId, int> moved_;
  MemberId silent_ = 0;
};

inline rendezvous::JobRecord record_of(Round next_round) {
  rendezvous::JobRecord record;
  record.job_id = "job";
  record.next_round = next_round;
  return record;
}

inline std::set<MemberId> voters_of(const JobReplica& replica) {
  std::set<MemberId> voters;
  for (const RaftMember::Server& server : replica.servers()) {
    if (server.votes) voters.insert(server.id);
  }
  return voters;
}

}  // namespace ddp::replicas
