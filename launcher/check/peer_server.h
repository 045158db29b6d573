#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/result.h"

namespace ddp::check {

// What a connection between two nodes begins with: the token of the one that listens, so that
// nobody else is served, and what is wanted. README.md has the rest.
inline constexpr std::size_t kTokenBytes = 32;
inline constexpr char kPing = 'p';  // 8 bytes, any number of times; each is answered by the clock.
inline constexpr char kSink = 's';  // Bytes until the end; their number is the answer.

// Microseconds since 1970 by this machine's clock, and numbers as they are sent (little endian).
std::int64_t wall_clock_us();
std::string to_bytes(std::int64_t number);
std::int64_t from_bytes(const std::string& bytes);

// Answers the other nodes of a check on a thread of its own, at a port that the system chooses.
// Destroying it closes all connections.
class PeerServer {
 public:
  static Result<std::unique_ptr<PeerServer>> start();
  ~PeerServer();
  PeerServer(const PeerServer&) = delete;
  PeerServer& operator=(const PeerServer&) = delete;

  int port() const { return port_; }
  const std::string& token() const { return token_; }

 private:
  struct State;
  PeerServer(std::unique_ptr<State> state, std::string token, int port);

  std::string token_;
  int port_;
  std::unique_ptr<State> state_;
};

}  // namespace ddp::check
