#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "worker/transport/connection.h"
#include "worker/transport/failure.h"

struct pollfd;

namespace ddp::transport {

// One end of a control connection.
struct ControlPeer {
  Connection connection;
  Rank rank = -1;
  int node = -1;
  bool beats = true;  // Whether heartbeats go both ways.
};

// The control connections to this rank's lane on the other nodes. They carry no data, so no backlog
// delays them. Each end may send heartbeats all the time, and sends at last either that it leaves
// in order or why the round ends. A connection that ends without either means that the peer died.
//
// Frames: u32 kind, u32 size, `size` bytes; little-endian.
//   kHere   u32: pid; host name. Once, before anything else
//   kBeat   u32: milliseconds until the next one
//   kLeave  nothing
//   kAbort  i32 Errc of the cause (0: no Errc), i32 suspect, text
class ControlLinks {
 public:
  // How long the cause may lag behind the end of a connection before the peer counts as dead,
  // measured in the watcher's own running time.
  static constexpr Duration kExplanationTime{100};
  // How long others wait for the watcher's verdict about a peer whose data connection has ended.
  // The verdict always comes, except about a peer that left in order. After a death it takes little
  // more than kExplanationTime, longer on an overloaded machine.
  static constexpr Duration kVerdictTime{2'000};

  explicit ControlLinks(std::vector<ControlPeer> peers);
  ~ControlLinks();
  ControlLinks(const ControlLinks&) = delete;
  ControlLinks& operator=(const ControlLinks&) = delete;

  bool empty() const { return peers_.empty(); }
  std::size_t size() const { return peers_.size(); }

  // Any thread; never blocks. Only the first call of tell_abort() or tell_leave() counts. Its
  // message has been sent when it returns, as far as the peers accept it; nothing is sent
  // afterwards.
  void tell_abort(const Failure& cause);
  void tell_leave();

  // The following are for one thread, the watcher's.

  // Tells the peers where this rank runs, for their messages.
  void introduce(const std::string& host);
  // Sends a heartbeat, to those that get them, that announces the next one after `interval`.
  void beat(Duration interval);
  // Sleeps until something arrives, `stop` is readable or `limit` has passed. The next listen()
  // reads what has arrived by then.
  void wait(int stop, Duration limit);
  // Reads what has arrived. `passed` is the time that this thread has watched since the last call.
  // Returns the failure to raise: what a peer reported, or that a peer died (kPeerLost), was silent
  // for `limit` (kTimeout; no limit if 0) or sent something that is not a frame (kProtocol).
  Outcome listen(Duration passed, Duration limit);
  // Whether a connection has ended without a word, so that listen() must be called again within
  // kExplanationTime.
  bool waits_for_explanation() const;

 private:
  struct Peer;

  void send(std::uint32_t kind, const std::string& payload, bool last);
  Outcome take(Peer& peer);

  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<pollfd> entries_;  // Kept by wait(), so that it allocates nothing.
  std::mutex using_;             // Of the connections: a guarded one serves one thread at a time.
  bool finished_ = false;        // Under using_: the last frame is sent.
};

}  // namespace ddp::transport
