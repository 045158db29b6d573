#pragma once

#include <algorithm>
#include <cstddef>

#include "worker/transport/transport.h"

// Parts that the pipelined algorithms share.
namespace ddp::collectives {

// The part of a chunk that one owner is responsible for, in elements (or bytes) from the chunk's
// beginning.
struct Slice {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
};

// Cuts `count` elements into `owners` slices whose bounds are multiples of `grain`, the last ones
// possibly empty.
inline Slice slice_of(std::size_t count, int owner, int owners, std::size_t grain) {
  const auto parts = static_cast<std::size_t>(owners);
  const std::size_t size = ((count + parts - 1) / parts + grain - 1) / grain * grain;
  const std::size_t begin = std::min(count, static_cast<std::size_t>(owner) * size);
  return {begin, std::min(count, begin + size)};
}

// Combines the results of the parts of a step: failure first, then movement.
class StepResult {
 public:
  // Returns whether the step can go on.
  bool add(transport::Advance progress) {
    if (progress == transport::Advance::kMoved) moved_ = true;
    if (progress == transport::Advance::kFailed) failed_ = true;
    return !failed_;
  }
  transport::Advance get(bool done) const {
    if (failed_) return transport::Advance::kFailed;
    if (done) return transport::Advance::kDone;
    return moved_ ? transport::Advance::kMoved : transport::Advance::kBlocked;
  }

 private:
  bool moved_ = false;
  bool failed_ = false;
};

// Position within a piece that goes through a link in several system calls.
class Piece {
 public:
  // Returns kDone once all `bytes` have moved; after that the next piece begins.
  transport::Advance send(transport::Transport& transport, transport::Link& link,
                          const std::byte* data, std::size_t bytes) {
    return move(transport, link, bytes,
                [&] { return link.send_some(data + done_, bytes - done_); });
  }
  transport::Advance receive(transport::Transport& transport, transport::Link& link,
                             std::byte* data, std::size_t bytes) {
    return move(transport, link, bytes,
                [&] { return link.receive_some(data + done_, bytes - done_); });
  }

 private:
  template <typename Some>
  transport::Advance move(transport::Transport& transport, transport::Link& link, std::size_t bytes,
                          Some&& some) {
    if (done_ < bytes) {
      const ssize_t moved = some();
      if (moved < 0) return transport.fail(link.failure());
      if (moved == 0) return transport::Advance::kBlocked;
      done_ += static_cast<std::size_t>(moved);
      if (done_ < bytes) return transport::Advance::kMoved;
    }
    done_ = 0;
    return transport::Advance::kDone;
  }

  std::size_t done_ = 0;
};

}  // namespace ddp::collectives
