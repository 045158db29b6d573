#include "worker/ddp/averaging/join_calls.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

using Call = JoinCalls::Call;

constexpr auto kCalls = static_cast<std::int64_t>(Call::kCalls);

Call call_of(std::int64_t announced) { return static_cast<Call>(announced % kCalls); }

bool is_live(std::int64_t announced) {
  const Call call = call_of(announced);
  return call != Call::kJoined && call != Call::kTerminate;
}

std::string text_of(std::int64_t announced) {
  const char* what = "nothing";
  if (call_of(announced) == Call::kForward) what = "a forward";
  if (call_of(announced) == Call::kBuffers) what = "a broadcast of buffers";
  if (call_of(announced) == Call::kBackward) what = "a backward";
  if (call_of(announced) == Call::kStep) what = "a step";
  const std::int64_t model = announced / kCalls;
  return model == 0 ? what : fmt::format("{} of model {}", what, model);
}

}  // namespace

JoinCalls::JoinCalls(std::shared_ptr<ProcessGroup> group, JoinOptions options)
    : group_(std::move(group)),
      options_(options),
      calls_(static_cast<std::size_t>(group_->size()), 0) {}

JoinCalls::~JoinCalls() { wait_quietly(work_); }

void JoinCalls::announce(Call mine, int model) {
  begin(mine, model);
  finish();
}

void JoinCalls::begin(Call mine, int model) {
  if (work_) {
    const std::string text =
        "join: a model's backward has begun before another one's has ended; call backward() for "
        "each model's loss by itself";
    group_->abort(text);
    throw std::logic_error(text);
  }
  std::int64_t& own = calls_[static_cast<std::size_t>(group_->rank())];
  own = static_cast<std::int64_t>(mine) + model * kCalls;
  work_ = group_->all_gather({&own, 1, DType::kI64}, {calls_.data(), calls_.size(), DType::kI64},
                             {{}, "join: who has input left"});
  work_->start();
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
        fmt::format("join: rank {} begins {}, rank {} {}; all ranks with input must do the same",
                    first, text_of(expected), rank, text_of(calls_[rank]));
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
  const auto at = std::find_if(calls_.begin(), calls_.end(), [](std::int64_t announced) {
    return call_of(announced) == Call::kTerminate;
  });
  return at == calls_.end() ? -1 : static_cast<Rank>(at - calls_.begin());
}

Call JoinCalls::call() const {
  const Rank first = first_live();
  return first < 0 ? Call::kJoined : call_of(calls_[static_cast<std::size_t>(first)]);
}

int JoinCalls::model() const {
  const Rank first = first_live();
  return first < 0 ? 0 : static_cast<int>(calls_[static_cast<std::size_t>(first)] / kCalls);
}

}  // namespace ddp
