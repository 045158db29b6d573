#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <asio/io_context.hpp>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/net/timer.h"
#include "launcher/etcd/etcd_client.h"
#include "launcher/etcd/job_record.h"

namespace ddp::etcd {

struct LeadershipOptions {
  std::string prefix = "/ddp-run/";
  std::string job_id;
  // How long etcd must answer at first, before it counts as not there.
  Duration patience{600'000};
  // A coordinator that etcd has not heard of for so long can be replaced. Whole seconds; etcd's own
  // elections take one or two.
  Duration lease{5'000};
  // How long a job's record outlives its last coordinator, so that the job can be gone on with ...
  Duration record_life{24 * 3'600'000};
  // ... and the job's end, so that a node that comes late does not start the job anew.
  Duration finished_life{600'000};
};

// One ddp-run's part in electing the coordinator of a job, and the coordinator's access to the
// job's record. Whoever creates the leader key while there is none coordinates; its lease, kept
// alive, says that it lives. What the coordinator writes is conditional on that very key, so one
// that was replaced without knowing writes nothing any more.
//
// A coordinator that cannot reach etcd goes on: nobody needs etcd until the next round, and its
// writes wait. If its lease has ended meanwhile it takes the office back, unless another one has
// had it.
//
// Everything, callbacks included, happens on the thread of `io`. Callbacks come from the event loop
// and must not destroy this object; stop() ends them.
class Leadership {
 public:
  struct Events {
    // Nobody coordinates: this ddp-run tries to. Gives where its daemon would be, which listens
    // from then on. Nothing: it cannot.
    std::function<std::optional<Leader>()> stand;
    // It is the coordinator now, and this is what its predecessors have left.
    std::function<void(const rendezvous::JobRecord& record)> won;
    // It is not, or not any more; the daemon that `stand` started is to go.
    std::function<void(const std::string& why)> lost;
    // The coordinator from now on, this ddp-run or another. After `won`.
    std::function<void(const Leader& leader)> leader;
    // The job was over when this ddp-run first looked. Nothing follows.
    std::function<void(const wire::Finish& result)> was_over;
    // etcd cannot be used: not there within `patience`, or it refuses. Nothing follows.
    std::function<void(const Error& why)> failed;
    // A line for the person in front of the terminal.
    std::function<void(const std::string& text)> notice;
  };

  Leadership(asio::io_context& io, EtcdClient& client, LeadershipOptions options, Events events);

  void start();
  bool leads() const { return phase_ == Phase::kLeading || phase_ == Phase::kRegaining; }
  // Only while it leads: stores the record and calls back when it is safe. It does not call back
  // where the office is lost first. Records are stored in the order of the calls.
  void store(const rendezvous::JobRecord& record, std::function<void()> stored);
  // Only while it leads: asks etcd whether it still does, and calls back if so. Like store(),
  // without anything to store.
  void confirm(std::function<void()> confirmed);
  // Gives the office up, if it has it, so that another need not wait for the lease to end. Calls
  // back after a second at most; no event follows.
  void stop(std::function<void()> done);

 private:
  enum class Phase {
    kStarting,    // etcd has not answered yet.
    kFollowing,   // Another one leads, or it is being found out who.
    kStanding,    // The lease or the key is on its way.
    kTakingOver,  // The key is ours; the record is being taken.
    kLeading,
    kRegaining,  // The lease has ended; the office is still ours if nobody else has had it.
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
  void follow(const Leader& leader, Revision revision);
  void stand();
  void claim(LeaseId lease, const Leader& own, bool again);
  void on_claim(Result<TransactionAnswer> answer, LeaseId lease, const Leader& own, bool again);
  void take_over(LeaseId lease, Revision revision, const Leader& own);
  void write_taken_over();
  void begin_leading();
  void keep_alive();
  void watch_own_key();
  void lease_ended();
  void regain();
  void lose(const std::string& why);
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
  LeaseId lease_ = 0;            // Of the leader key, while it is ours.
  Revision office_ = 0;          // The leader key's create_revision, while it is ours.
  LeaseId record_lease_ = 0;     // Of the state key.
  TimePoint record_renewal_;     // When it is to be kept alive next.
  Revision state_revision_ = 0;  // The state key's mod_revision as last seen; 0: there is none.
  StoredState state_;
  std::deque<Pending> pending_;
  bool writing_ = false;
};

}  // namespace ddp::etcd
