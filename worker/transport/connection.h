#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/unique_fd.h"

namespace ddp::transport {

// One end of a guarded connection (link_guard.h): how the bytes go through its socket. One thread
// at a time.
class ConnectionGuard {
 public:
  virtual ~ConnectionGuard() = default;
  ConnectionGuard(const ConnectionGuard&) = delete;
  ConnectionGuard& operator=(const ConnectionGuard&) = delete;

  // As Connection's functions. The first calls make the handshake.
  virtual ssize_t send(int fd, std::span<const std::byte> bytes) = 0;
  virtual ssize_t receive(int fd, std::span<std::byte> bytes) = 0;
  // What the handshake waits for, as an event of poll(); 0: it is over.
  virtual short handshake_waits_for() const = 0;
  // Why the other end is not accepted, or does not accept this one; empty: errno says what is
  // wrong.
  const std::string& why() const { return why_; }

 protected:
  ConnectionGuard() = default;
  // For send() and receive(): the connection has failed for this reason.
  ssize_t refuse(std::string why);

 private:
  std::string why_;
};

// A stream socket of any family to another rank, non-blocking, and what guards it. The kernel or
// the guard copies what is sent, so the caller's memory may change when a call returns.
//
// One thread at a time. Owns the socket.
class Connection {
 public:
  Connection() = default;
  // Without a guard. Implicit, so that a plain socket serves where a connection is wanted.
  Connection(UniqueFd fd) : fd_(std::move(fd)) {}  // NOLINT(google-explicit-constructor)
  Connection(UniqueFd fd, std::unique_ptr<ConnectionGuard> guard)
      : fd_(std::move(fd)), guard_(std::move(guard)) {}

  explicit operator bool() const { return static_cast<bool>(fd_); }
  int fd() const { return fd_.get(); }

  // Return the number of bytes moved, at least 1 for at least 1 byte. 0 from receive(): the peer
  // has closed the connection. -1: errno says why; if non_blocking.h's would_block() is true of it,
  // try again with the same bytes (or with more after them) once poll() shows waits_for().
  ssize_t send(std::span<const std::byte> bytes);
  ssize_t receive(std::span<std::byte> bytes);
  // The same for two pieces of memory, in this order.
  ssize_t send(std::span<const std::byte> first, std::span<const std::byte> second);
  ssize_t receive(std::span<std::byte> first, std::span<std::byte> second);

  // The event of poll() to wait for if a call in the direction of `wanted` (POLLIN or POLLOUT)
  // would block: another one while the handshake is under way.
  short waits_for(short wanted) const;
  // Says what errno meant after a call that returned -1, as the end of a sentence.
  std::string explain(int error) const;
  // Ends one direction or both, as ::shutdown() does.
  void shut_down(int how);

  // Whether bytes that were sent have had no answer for `limit`, although the kernel has sent them
  // again: the way to the peer is cut, or its machine is gone. A peer that does not read is no such
  // case, since its kernel answers. Looks once a second at most, and says no in between. For a
  // thread that waits.
  static constexpr Duration kCutAfter{30'000};
  bool is_cut(Duration limit);

 private:
  UniqueFd fd_;
  std::unique_ptr<ConnectionGuard> guard_;
  TimePoint next_look_{};  // Of is_cut().
};

}  // namespace ddp::transport
