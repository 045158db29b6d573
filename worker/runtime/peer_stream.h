#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "worker/transport/arena.h"
#include "worker/transport/connection.h"
#include "worker/transport/pair_ring.h"
#include "worker/transport/segment.h"

namespace ddp::runtime {

using Bytes = std::span<const std::byte>;

// A two-way byte stream between this rank and another one. Nothing waits. One thread at a time.
class PeerStream {
 public:
  virtual ~PeerStream() = default;

  // Writes what it can of `first` and then of `second`; returns how many bytes.
  virtual std::size_t write(Bytes first, Bytes second) = 0;
  // Reads up to `bytes` bytes; returns how many.
  virtual std::size_t read(std::byte* to, std::size_t bytes) = 0;
  // Why the stream has ended; empty while it has not.
  const std::string& ended() const { return ended_; }

 protected:
  std::string ended_;
};

// To a rank of the same node: a ring for each direction. This rank's ring is made, in its arena, at
// the first write, and found by the peer through the table in the segment.
class PeerRings final : public PeerStream {
 public:
  // `generation`: which of the groups that used the segment's memory this is; see PairTable.
  PeerRings(std::shared_ptr<transport::Segment> segment, std::shared_ptr<transport::Arena> arena,
            int local, int peer, std::uint32_t generation);
  // The ring's memory is reused once the peer has detached.
  ~PeerRings() override;

  std::size_t write(Bytes first, Bytes second) override;
  std::size_t read(std::byte* to, std::size_t bytes) override;

  // Writes all or nothing, without waiting for room.
  bool write_all(Bytes first, Bytes second);

  // Takes a ticket for the next message, whose payload the peer reads in place. Nothing if all are
  // in use.
  std::optional<std::uint32_t> take_ticket();
  bool is_taken(std::uint32_t ticket) const { return writer_->is_taken(ticket); }
  void give_back(std::uint32_t ticket) { writer_->give_back(ticket); }
  // Returns the peer's ticket: this rank has read the payload.
  void take(std::uint32_t ticket);
  // Where the peer's payload lies.
  const std::byte* payload(std::uint64_t offset, std::size_t bytes) {
    return arena_->at(segment_->region_of(peer_), offset, bytes);
  }

 private:
  bool make_ring();
  bool find_ring();
  void wake_peer();

  std::shared_ptr<transport::Segment> segment_;
  std::shared_ptr<transport::Arena> arena_;
  int local_;
  int peer_;
  std::uint32_t generation_;
  std::shared_ptr<std::byte> memory_;  // Of this rank's ring.
  std::optional<transport::RingWriter> writer_;
  std::optional<transport::RingReader> reader_;
};

// To a rank of another node: one connection.
class PeerSocket final : public PeerStream {
 public:
  explicit PeerSocket(transport::Connection connection);

  std::size_t write(Bytes first, Bytes second) override;
  std::size_t read(std::byte* to, std::size_t bytes) override;

  // For a thread that is about to wait. Ends the stream if the way to the peer is cut.
  void check_way();
  int fd() const { return connection_.fd(); }
  // Whether the last write could not move everything; poll() says when to try again.
  bool wants_write() const { return wants_write_; }
  // Tells the peer that nothing more will come.
  void end_writing();

 private:
  static constexpr std::size_t kBufferBytes = 32u << 10;
  std::size_t take_buffered(std::byte* to, std::size_t bytes);

  transport::Connection connection_;
  bool wants_write_ = false;
  std::unique_ptr<std::byte[]> buffer_;  // Received, but not read yet.
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace ddp::runtime
