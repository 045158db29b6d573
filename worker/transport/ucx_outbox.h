#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "worker/transport/ucx_worker.h"

namespace ddp::transport {

// The sending half of a UcxStream. Small pieces are copied, so they count as moved at once. They
// wait at the peer until it wants them, up to a window. Large pieces are offered to the peer, which
// fetches them from the caller's memory when it wants them, several at a time. They count as moved
// when it has them.
class UcxOutbox {
 public:
  explicit UcxOutbox(UcxWorker& worker) : worker_(worker) {}

  void open(ucp_ep_h endpoint, std::uint32_t link) {
    endpoint_ = endpoint;
    link_ = link;
  }
  // As DataStream::send_some(), without progress; status() has a failure.
  std::size_t send_some(const std::byte* data, std::size_t bytes);
  // Sends a frame without data.
  void send(UcxFrameKind kind);
  // What to tell the peer with the next frame: see UcxFrame::taken.
  void set_taken(std::uint64_t bytes) { taken_ = bytes; }
  // The peer's `taken` has arrived.
  void on_taken(std::uint64_t bytes);

  // Whether something changed since clear_news() that may let send_some() go on.
  bool news() const { return news_; }
  void clear_news() { news_ = false; }
  // Whether UCX still has memory of ours or of the caller.
  bool busy() const { return under_way_ > 0; }
  // Forgets messages that are done, as send_some() does.
  void tidy();
  ucs_status_t status() const { return status_; }

 private:
  struct Message {
    UcxOutbox* owner = nullptr;
    UcxFrame frame;
    std::size_t bytes = 0;  // To be reported as moved.
    std::unique_ptr<std::byte[]> copy;
    bool safe = false;  // Nothing more is read from the caller's memory.
    bool done = false;
  };

  std::size_t report();
  bool send_next(const std::byte* data, std::size_t bytes);
  void post(Message& message, const void* data, std::size_t bytes, std::uint32_t flags);
  void finish(Message& message, ucs_status_t status);
  static void on_sent(void* request, ucs_status_t status, void* message);

  UcxWorker& worker_;
  ucp_ep_h endpoint_ = nullptr;
  std::uint32_t link_ = 0;
  std::uint32_t next_sequence_ = 0;
  std::deque<Message> messages_;  // In order; UCX has the addresses of what is not done.
  std::size_t reported_ = 0;      // How many messages, from the front, are reported.
  std::size_t posted_ = 0;        // Bytes of the caller that are posted and not reported.
  int under_way_ = 0;             // Messages that are not done.
  int offers_ = 0;                // Large messages that are not done.
  std::uint64_t copied_ = 0;      // Bytes that were sent as small pieces, in all.
  std::uint64_t peer_taken_ = 0;  // How many of those the peer has consumed.
  std::uint64_t taken_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> spare_;
  bool news_ = false;
  ucs_status_t status_ = UCS_OK;
};

}  // namespace ddp::transport
