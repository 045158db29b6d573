#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <asio/io_context.hpp>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/net/timer.h"
#include "launcher/etcd/etcd_client.h"
#include "launcher/etcd/stored_state.h"

namespace ddp::etcd {

struct LeadershipOptions {
  std::string prefix = "/ddp-run/";
  std::string job_id;
  // How long to wait for etcd's first answer before giving up.
  Duration patience{600'000};
  // A coordinator can be replaced if etcd has not heard from it for this long. Whole seconds. Not
  // too short, because etcd's own elections take one or two seconds.
  Duration lease{5'000};
  // How long a job's record outlives its last coordinator, so that the job can be continued.
  Duration record_life{24 * 3'600'000};
  // How long the record outlives the job's end, so that a late node does not start the job again.
  Duration finished_life{600'000};
};

// One ddp-run's part in electing the coordinator (leader) of a job, and the leader's access to the
// job's record. The ddp-run that creates the leader key while there is none is the leader. It keeps
// the key's lease alive to show that it lives. Everything that it writes is conditional on that
// very key, so a leader that was replaced without noticing cannot write any more.
//
// A leader that cannot reach etcd goes on: nothing needs etcd until the next round, and its writes
// wait. If its lease has ended meanwhile, it takes the leadership back, unless another ddp-run has
// had it.
//
// Everything, callbacks included, happens on the thread of `io`. Callbacks come from the event loop
// and must not destroy this object; stop() ends them.
class Leadership {
 public:
  struct Events {
    // There is no leader, so this ddp-run tries to become it. Returns the address of its daemon,
    // which listens from then on; nothing if it cannot.
    std::function<std::optional<Leader>()> stand;
    // This ddp-run is the leader now; `record` is what its predecessors have left.
    std::function<void(const rendezvous::JobRecord& record)> won;
    // This ddp-run is not the leader, or no longer. The daemon that `stand` started must end.
    std::function<void(const std::string& why)> lost;
    // The leader from now on, this ddp-run or another. Comes after `won`.
    std::function<void(const Leader& leader)> leader;
    // The job was over when this ddp-run first looked. No other event follows.
    std::function<void(const wire::Finish& result)> was_over;
    // etcd cannot be used: it did not answer within `patience`, or it refuses. No other event
    // follows.
    std::function<void(const Error& why)> failed;
    // A line for the person in front of the terminal.
    std::function<void(const std::string& text)> notice;
  };

  Leadership(asio::io_context& io, EtcdClient& client, LeadershipOptions options, Events events);

  void start();
  bool leads() const { return phase_ == Phase::kLeading || phase_ == Phase::kRegaining; }
  // Only while leads(): stores the record and calls back when etcd has it. Does not call back if
  // the leadership is lost first. Records are stored in the order of the calls.
  void store(const rendezvous::JobRecord& record, std::function<void()> stored);
  // Only while leads(): asks etcd whether this ddp-run is still the leader, and calls back if so.
  // Like store(), without a record.
  void confirm(std::function<void()> confirmed);
  // Gives up the leadership, if it has it, so that others need not wait for the lease to end. Calls
  // back after at most a second. No event follows.
  void stop(std::function<void()> done);

 private:
  enum class Phase {
    kStarting,    // etcd has not answered yet.
    kFollowing,   // Another one leads, or the leader is not known yet.
    kStanding,    // Has asked for the lease or the key.
    kTakingOver,  // The key is ours; the record is being taken over.
    kLeading,
    kRegaining,  // The lease has ended; takes the leadership back unless another one has had it.
    kStopped,
  };
  struct Pending {
    rendezvous::JobRecord record;
    std::function<void()> stored;
  };

  void look();
  void look_after(Duration delay);
  void on_look(Result<TransactionAnswer> answer);
  void look_failed(const Error& error);
  void complain(const Error& error);
  void follow(const Leader& leader, Revision revision);
  void stand();
  void claim(LeaseId lease, const Leader& own, bool again);
  void on_claim(Result<TransactionAnswer> answer, LeaseId lease, const Leader& own, bool again);
  void take_over(Revision revision, const Leader& own);
  void write_taken_over();
  void begin_leading();
  void keep_alive();
  void watch_own_key();
  void lease_ended();
  void regain();
  void lose(const std::string& why);
  void go_on();
  void try_again(const Error& error);
  void ask_who_leads();
  void write_next();
  void write(LeaseId record_lease);
  bool stopped() const { return phase_ == Phase::kStopped; }
  Transaction guarded_put(const StoredState& state, LeaseId lease) const;
  bool read_state(const std::optional<KeyValue>& found);

  EtcdClient& client_;
  const LeadershipOptions options_;
  const Keys keys_;
  Events events_;

  Phase phase_ = Phase::kStarting;
  TimePoint started_;
  TimePoint next_notice_;
  std::optional<Leader> leader_;  // As last reported.
  net::Timer look_timer_;
  net::Timer lease_timer_;
  net::Timer write_timer_;

  Leader own_;
  // How often the leadership, or the hope for it, was lost. Answers of an earlier term do not
  // count.
  int term_ = 0;
  LeaseId lease_ = 0;            // Of the leader key, while it is ours or may be.
  Revision office_ = 0;          // The leader key's create_revision, while the key is ours.
  LeaseId record_lease_ = 0;     // Of the state key.
  TimePoint record_renewal_;     // When record_lease_ must be kept alive next.
  Revision state_revision_ = 0;  // The state key's mod_revision as last seen; 0: no such key.
  StoredState state_;
  std::deque<Pending> pending_;
  // Those of confirm() that no question is under way for.
  std::vector<std::function<void()>> unconfirmed_;
  bool writing_ = false;
};

}  // namespace ddp::etcd
