#include "worker/ddp/join_calls.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace ddp {
namespace {

using Call = JoinCalls::Call;

bool is_live(std::int64_t call) {
  return call != static_cast<std::int64_t>(Call::kJoined) &&
         call != static_cast<std::int64_t>(Call::kTerminate);
}

const char* name_of(std::int64_t call) {
  switch (static_cast<Call>(call)) {
    case Call::kForward:
      return "a forward";
    case Call::kBuffers:
      return "a broadcast of buffers";
    case Call::kBackward:
      return "a backward";
    default:
      return "nothing";
  }
}

}  // namespace

JoinCalls::JoinCalls(std::shared_ptr<ProcessGroup> group, JoinOptions options)
    : group_(std::move(group)),
      options_(options),
      calls_(static_cast<std::size_t>(group_->size()), 0) {}

void JoinCalls::announce(Call mine) {
  begin(mine);
  finish();
}

void JoinCalls::begin(Call mine) {
  std::int64_t& own = calls_[static_cast<std::size_t>(group_->rank())];
  own = static_cast<std::int64_t>(mine);
  work_ = group_->all_gather({&own, 1, DType::kI64}, {calls_.data(), calls_.size(), DType::kI64},
                             {{}, "join: who has input left"});
}

void JoinCalls::finish() {
  const WorkPtr work = std::exchange(work_, nullptr);
  if (!work) return;
  work->wait();
  const Rank first = first_live();
  if (first < 0) return;
  const std::int64_t expected = calls_[static_cast<std::size_t>(first)];
  for (std::size_t rank = 0; rank < calls_.size(); ++rank) {
    if (!is_live(calls_[rank]) || calls_[rank] == expected) continue;
    const std::string text =
        fmt::format("join: rank {} begins {}, rank {} {}; ranks with input have to do the same",
                    first, name_of(expected), rank, name_of(calls_[rank]));
    group_->abort(text);
    throw std::logic_error(text);
  }
}

int JoinCalls::live() const {
  return static_cast<int>(std::count_if(calls_.begin(), calls_.end(), is_live));
}

Rank JoinCalls::first_live() const {
  const auto at = std::find_if(calls_.begin(), calls_.end(), is_live);
  return at == calls_.end() ? -1 : static_cast<Rank>(at - calls_.begin());
}

Rank JoinCalls::first_ended() const {
  const auto at =
      std::find(calls_.begin(), calls_.end(), static_cast<std::int64_t>(Call::kTerminate));
  return at == calls_.end() ? -1 : static_cast<Rank>(at - calls_.begin());
}

Call JoinCalls::call() const {
  const Rank first = first_live();
  return first < 0 ? Call::kJoined : static_cast<Call>(calls_[static_cast<std::size_t>(first)]);
}

}  // namespace ddp
