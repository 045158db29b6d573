#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/unique_fd.h"
#include "worker/transport/failure.h"

struct pollfd;

namespace ddp {

// One end of a control connection: a stream socket of any family.
struct ControlPeer {
  UniqueFd socket;
  Rank rank = -1;
  int node = -1;
};

// The control connections to this rank's lane on the other nodes. They carry no data, so no backlog
// delays them: signs of life all the time, and at the end either that the rank leaves in order or
// why the round ends. A connection that ends without either is a death.
//
// Frames: u32 kind, u32 size, `size` bytes; little-endian.
//   kBeat   u32: milliseconds until the next one
//   kLeave  nothing
//   kAbort  i32 Errc of the cause (0: of no kind), i32 suspect, text
class ControlLinks {
 public:
  // How long a cause that is under way may lag behind the end of a connection before the peer
  // counts as dead: in time that the watcher has run.
  static constexpr Duration kExplanationTime{100};
  // How long others wait for the watcher's verdict about a peer whose data has ended. It always
  // comes, after a death in little more than kExplanationTime, but for a peer that has left in
  // order; a machine that is overloaded needs longer.
  static constexpr Duration kVerdictTime{2'000};

  explicit ControlLinks(std::vector<ControlPeer> peers);
  ~ControlLinks();
  ControlLinks(const ControlLinks&) = delete;
  ControlLinks& operator=(const ControlLinks&) = delete;

  bool empty() const { return peers_.empty(); }
  std::size_t size() const { return peers_.size(); }

  // Any thread; never blocks. The first of tell_abort() and tell_leave() counts and is sent when it
  // returns, as far as the peers are there to take it; nothing is sent after it.
  void tell_abort(const Failure& cause);
  void tell_leave();

  // The following on one thread, the watcher's.

  // Announces the next one for `interval` later.
  void beat(Duration interval);
  // What to poll; at most size(). Gives the number of entries written.
  int poll_entries(pollfd* entries) const;
  // Takes in what has come. `passed` is the time that this thread has watched since the last call.
  // The failure to raise: what a peer told, or that a peer has died (kPeerLost), has been silent
  // for `limit` (kTimeout; no limit if 0), or speaks another language (kProtocol).
  Outcome listen(Duration passed, Duration limit);
  // Whether a connection has ended without a word, so that listen() must be called again within
  // kExplanationTime.
  bool waits_for_explanation() const;

 private:
  struct Peer;

  void send(std::uint32_t kind, const std::string& payload, bool last);
  static Outcome take(Peer& peer);

  std::vector<std::unique_ptr<Peer>> peers_;
  std::mutex sending_;
  bool finished_ = false;  // Under sending_: the last frame is sent.
};

}  // namespace ddp
