#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "worker/transport/ucx_worker.h"

namespace ddp::transport {

// The receiving half of a UcxStream: puts messages back into order and into the caller's memory.
// Small messages have arrived already and are copied. Large ones are fetched straight to where the
// caller wants them, or through a buffer if the caller has less room.
class UcxInbox {
 public:
  explicit UcxInbox(UcxWorker& worker) : worker_(worker) {}
  ~UcxInbox() { release(); }

  // For a frame of kind kData or kEnd; see UcxReceiver.
  ucs_status_t on_frame(const UcxFrame& frame, void* data, std::size_t bytes,
                        std::uint64_t attributes);
  // As DataStream::receive_some(), without progress; status() has a failure.
  std::size_t receive_some(std::byte* data, std::size_t bytes);

  // Whether something changed since clear_news() that may let receive_some() go on.
  bool news() const { return news_; }
  void clear_news() { news_ = false; }
  // The peer sent its last byte, and it was received.
  bool ended() const { return ended_; }
  // Bytes that arrived before the caller asked for them and that it has consumed since.
  std::uint64_t taken() const { return taken_; }
  // Whether UCX still writes to the caller's memory or ours.
  bool busy() const { return fetching_ > 0; }
  ucs_status_t status() const { return status_; }
  // Returns unread messages to UCX.
  void release();

 private:
  enum class State {
    kMissing,   // A later one arrived first.
    kHeld,      // In UCX's memory, ours until released.
    kCopied,    // In `copy`.
    kOffered,   // At the peer; `data` is UCX's description.
    kFetching,  // On its way to `copy`.
    kEnd,
  };
  struct Message {
    UcxInbox* owner = nullptr;
    State state = State::kMissing;
    void* data = nullptr;
    std::size_t bytes = 0;
    std::size_t used = 0;
    std::unique_ptr<std::byte[]> copy;
    bool counts = false;  // Against the sender's window.
  };
  struct Landing {  // On its way to the caller's memory.
    UcxInbox* owner = nullptr;
    std::size_t bytes = 0;
    bool done = false;
  };

  bool receive_next(std::byte* data, std::size_t room);
  void take_copied(Message& message, std::byte* data, std::size_t room);
  bool fetch(void* description, void* target, std::size_t bytes,
             ucp_am_recv_data_nbx_callback_t done, void* argument);
  void finish(ucs_status_t status);
  std::size_t report();
  static void on_landed(void* request, ucs_status_t status, std::size_t bytes, void* landing);
  static void on_fetched(void* request, ucs_status_t status, std::size_t bytes, void* message);

  UcxWorker& worker_;
  std::deque<Message> messages_;  // From next_sequence_ on.
  std::uint32_t next_sequence_ = 0;
  std::deque<Landing> landings_;  // In order, after ready_.
  std::size_t ready_ = 0;         // Bytes in the caller's memory that are not reported yet.
  std::size_t placed_ = 0;        // ready_ and landings_.
  int fetching_ = 0;
  std::uint64_t taken_ = 0;
  bool ended_ = false;
  bool news_ = false;
  ucs_status_t status_ = UCS_OK;
};

}  // namespace ddp::transport
