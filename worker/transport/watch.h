#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "worker/transport/control_links.h"
#include "worker/transport/failure.h"
#include "worker/transport/lifeline.h"
#include "worker/transport/segment.h"
#include "worker/transport/topology.h"

struct futex_waitv;

namespace ddp::transport {

struct WatchOptions {
  // A rank that has not run for this long is reported; 0: never. The same on all ranks.
  Duration stall_timeout{5'000};
  bool force_polling = false;  // As on a kernel without futex_waitv (Linux 5.16).
};

// Detects that a rank of the world dies, stops or aborts, even while this rank is in no operation,
// and raises the abort word of this node. It also shows the others that this rank is present.
//
// Two threads: "ddp-watch" holds this rank's lifeline, beats, and sleeps on the lifelines of the
// node's other ranks, so that a death is seen within about 100 us; "ddp-watch-net", only where
// there are control connections, listens to the other nodes. A rank's silence is measured in the
// time that the watcher itself has run, so that a rank that was stopped, or a machine that was
// suspended, accuses nobody.
//
// Once the constructor has returned, the others see this rank's death. Destruction is an orderly
// departure and waits for nobody.
class Watch {
 public:
  // Topology and segment of the world. peers: this rank's lane.
  Watch(const Topology& topology, std::shared_ptr<Segment> segment, std::vector<ControlPeer> peers,
        const WatchOptions& options);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Readable soon after the abort word of this node is raised, for ranks that sleep in poll(); -1
  // in a world of one node.
  int abort_event() const { return abort_event_.get(); }

  // Tells the other nodes why the round has ended, if the abort word is raised. The message has
  // been sent when it returns, so the process may end. Any thread, any number of times.
  void tell_nodes();

 private:
  // What this rank knows about another rank of its node.
  struct Neighbour {
    int local = 0;
    std::uint32_t beats = 0;
    Duration silent{0};
  };

  void run();
  void examine(Duration passed);
  void sleep(TimePoint until);
  void run_net();
  void raise(const Failure& cause);
  bool stopping() const { return stop_.load() != 0; }

  const Topology topology_;
  const std::shared_ptr<Segment> segment_;
  const WatchOptions options_;
  bool polling_;
  ControlLinks links_;
  UniqueFd net_stop_;  // Readable when the second thread is to end.
  UniqueFd abort_event_;

  std::vector<Neighbour> neighbours_;  // The next local ranks first; used by ddp-watch only.
  // The lifelines that ddp-watch sleeps on: word and value.
  std::vector<LifeSign> awaited_;

  std::atomic<std::uint32_t> ready_{0};
  std::atomic<std::uint32_t> stop_{0};
  std::thread thread_;
  std::thread net_thread_;
};

// The default, or what DDP_STALL_TIMEOUT_MS says. Throws std::invalid_argument.
Duration stall_timeout_from_environment(Duration otherwise);

}  // namespace ddp::transport
