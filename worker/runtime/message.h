#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "worker/collectives/types.h"
#include "worker/runtime/process_group.h"
#include "worker/transport/failure.h"

namespace ddp::runtime {

// Users' tags are below this. Tags from here on belong to operations that are composed of messages,
// which error messages name by OpOptions::tag.
inline constexpr std::uint64_t kInternalTags = std::uint64_t{1} << 32;
inline constexpr Rank kAnyRank = -1;
// A message of up to this size is always buffered.
inline constexpr std::size_t kEagerBytes = 32u << 10;

enum class MessageKind : std::uint32_t {
  kStream = 1,  // The payload follows.
  kDirect,      // The payload lies in the sender's arena; inside a node only.
  kAbort,       // The payload is the text of a Failure; `tag` is its code, `count` its length.
};

// Precedes each message between two ranks. Little-endian.
struct MessageHeader {
  std::uint64_t tag = 0;
  std::uint64_t count = 0;   // Elements.
  std::uint64_t offset = 0;  // kDirect: in the sender's region.
  MessageKind kind = MessageKind::kStream;
  std::uint32_t type = 0;     // DType
  std::uint32_t ticket = 0;   // kDirect; see PairRing.
  std::int32_t suspect = -1;  // kAbort
};
static_assert(sizeof(MessageHeader) == 40);

class PostOffice;

// A send or a receive. Completed once, by a thread that moves messages.
class MessageWork final : public Work {
 public:
  enum class Kind { kSend, kRecv };

  MessageWork(std::weak_ptr<PostOffice> mover, Kind which, Buffer data, Rank other,
              std::uint64_t message_tag, std::uint64_t number, const OpOptions& options)
      : kind(which),
        buffer(data),
        peer(other),
        tag(message_tag),
        sequence(number),
        timeout(options.timeout),
        source(other),
        mover_(std::move(mover)),
        text_(options.tag.str()),
        on_done_(options.on_done) {}

  bool done() const override { return state_.load(std::memory_order_acquire) != kPending; }
  void wait() override;

  bool has_listener() const { return on_done_ != nullptr; }
  // Calls OpOptions::on_done. Call it once, after the work has succeeded or failed.
  void tell_listener();

  // "send #12 to rank 3 tag 7 (bucket 3)"
  std::string name() const;

  const std::string& text() const { return text_; }
  bool failed() const { return state_.load(std::memory_order_acquire) == kFailed; }

  void succeed() { finish(kSucceeded); }
  void fail(Failure failure) {
    failure_ = std::move(failure);
    finish(kFailed);
  }

  std::byte* bytes() const { return static_cast<std::byte*>(buffer.data); }

  const Kind kind;
  const Buffer buffer;
  const Rank peer;  // kAnyRank: a receive from whoever sends first.
  const std::uint64_t tag;
  const std::uint64_t sequence;
  const std::chrono::milliseconds timeout;
  // For the mover:
  Rank source;                            // Whose message a receive gets; kAnyRank until known.
  bool begun = false;                     // Some of its bytes have moved, but not all.
  std::uint64_t flight = 0;               // Its entry in the flight recorder; 0: none.
  TimePoint deadline = TimePoint::max();  // Set before the call that issued it returns.
  std::list<std::shared_ptr<MessageWork>>::iterator pending;  // For the code that completes it.

 private:
  enum State : std::uint32_t { kPending, kSucceeded, kFailed };
  void finish(State state) {
    state_.store(state, std::memory_order_release);
    state_.notify_all();
  }

  std::weak_ptr<PostOffice> mover_;
  std::string text_;
  std::function<void(std::exception_ptr)> on_done_;
  Failure failure_;  // Written before state_ becomes kFailed.
  std::atomic<std::uint32_t> state_{kPending};
};

}  // namespace ddp::runtime
