#pragma once

#include <poll.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/process/user_gate.h"
#include "worker/runtime/meeting.h"
#include "worker/transport/connection.h"
#include "worker/transport/failure.h"
#include "worker/transport/topology.h"

namespace ddp::runtime {

// Makes connections to wanted ranks of other nodes, once both ranks want it: the higher one listens
// at an endpoint that it puts into the store as "<prefix>/p2p/<rank>", and the lower one connects.
// Nothing waits, except for the answer of the store. One thread at a time.
class PeerLinks {
 public:
  PeerLinks(Meeting meeting, Round round, const transport::Topology& topology)
      : meeting_(std::move(meeting)),
        round_(round),
        rank_(topology.rank()),
        world_size_(topology.world_size()) {}

  void want(Rank peer);
  bool busy() const { return !wanted_.empty(); }

  struct Connected {
    Rank peer;
    transport::Connection connection;
  };
  // Makes all progress that is possible; adds new connections, which may include a lower rank that
  // was not wanted. Fails if there is no store or if it is lost.
  Outcome step(std::vector<Connected>& connected);
  // When to call step() even if none of the poll entries is ready.
  TimePoint next_attempt() const { return next_attempt_; }
  void add_poll_entries(std::vector<pollfd>& entries) const;
  // What poll() said of them. Also while no rank is wanted, the next step() sees to those who come.
  void polled(std::span<const pollfd> entries);
  // Why there is no connection to a wanted rank yet, for error messages.
  std::string status(Rank peer) const;

 private:
  // All members little-endian, as every machine that LibTorch runs on is.
  struct Hello {
    std::uint32_t magic = 0x4D504444;  // "DDPM"
    std::uint32_t version = 1;
    std::uint64_t token = 0;
    std::int64_t round = kNoRound;
    std::int32_t world_size = 0;
    std::int32_t connecting = -1;
    std::int32_t listening = -1;
    std::uint32_t reserved = 0;
  };
  struct Attempt {                       // To a higher rank.
    std::vector<std::string> addresses;  // Empty: its endpoint is not known yet.
    int port = 0;
    std::uint64_t token = 0;
    std::size_t address = 0;           // Index of the one being tried.
    transport::Connection connection;  // Open during an attempt.
    bool is_connected = false;         // Then it greets.
    std::size_t greeted = 0;           // How many bytes of its Hello are sent.
    TimePoint limit{};                 // For this address.
    std::string last;                  // The last error.
  };
  struct Visitor {
    transport::Connection connection;
    Hello hello;
    std::size_t received = 0;
  };
  enum class Greeting { kIncomplete, kRefused, kWelcome };

  Outcome listen();
  Outcome look_up(Rank peer, Attempt& attempt);
  bool try_connect(Rank peer, Attempt& attempt, bool due);
  void begin_connect(Attempt& attempt);
  Result<void> go_on(Rank peer, Attempt& attempt);
  void accept(std::vector<Connected>& connected);
  Greeting read_hello(Visitor& visitor) const;

  Meeting meeting_;
  Round round_;
  Rank rank_;
  int world_size_;
  UniqueFd listener_;
  std::optional<UserGate> gate_;
  std::uint64_t token_ = 0;
  std::map<Rank, Attempt> wanted_;
  std::set<Rank> accepted_;
  std::vector<Visitor> visitors_;
  bool knocked_ = false;  // Somebody has come, or a visitor has said more.
  TimePoint next_attempt_ = TimePoint::max();
  Duration pause_{1};  // Until the next attempt; grows.
};

}  // namespace ddp::runtime
