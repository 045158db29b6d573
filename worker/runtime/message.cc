#include "worker/runtime/message.h"

#include <fmt/format.h>

#include "worker/runtime/post_office.h"

namespace ddp::runtime {

std::string MessageWork::name() const {
  std::string name = fmt::format("{} #{} {} rank {}", kind == Kind::kSend ? "send" : "recv",
                                 sequence, kind == Kind::kSend ? "to" : "from", peer);
  if (tag < kInternalTags) name += fmt::format(" tag {}", tag);
  if (!text_.empty()) name += fmt::format(" ({})", text_);
  return name;
}

void MessageWork::wait() {
  if (!done()) {
    if (const auto mover = mover_.lock()) mover->wait(*this);
  }
  // If the mover is gone, its destructor is about to complete the work.
  state_.wait(kPending);
  if (state_.load(std::memory_order_acquire) == kFailed) {
    throw CollectiveError(failure_);
  }
}

}  // namespace ddp::runtime
