#include "worker/runtime/message.h"

#include <utility>

#include <fmt/format.h>

#include "worker/runtime/post_office.h"
#include "worker/runtime/waiting_time.h"

namespace ddp::runtime {

std::string MessageWork::name() const {
  const bool sends = kind == Kind::kSend;
  std::string name =
      fmt::format("{} #{} {} {}", sends ? "send" : "recv", sequence, sends ? "to" : "from",
                  peer == kAnyRank ? "any rank" : fmt::format("rank {}", peer));
  if (tag < kInternalTags) name += fmt::format(" tag {}", tag);
  if (!text_.empty()) name += fmt::format(" ({})", text_);
  return name;
}

void MessageWork::tell_listener() {
  const auto on_done = std::exchange(on_done_, nullptr);
  on_done(failed() ? std::make_exception_ptr(CollectiveError(failure_)) : nullptr);
}

void MessageWork::wait() {
  if (!done()) {
    const Waiting waiting;
    if (const auto mover = mover_.lock()) mover->wait(*this);
    // If the mover is gone, its destructor is about to complete the work.
    state_.wait(kPending);
  }
  if (state_.load(std::memory_order_acquire) == kFailed) {
    throw CollectiveError(failure_);
  }
}

}  // namespace ddp::runtime
