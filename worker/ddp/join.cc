#include "worker/ddp/join.h"

#include <cstddef>
#include <exception>
#include <stdexcept>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>

namespace ddp {
namespace {

constexpr std::uint64_t kManyIterations = 1000;

}  // namespace

Join::Join(DataParallelCore& core, const JoinOptions& options)
    : core_(core), is_open_(options.enable), exceptions_(std::uncaught_exceptions()) {
  if (is_open_) core_.begin_join(options);
}

Join::~Join() noexcept(false) {
  if (!is_open_) return;
  if (std::uncaught_exceptions() == exceptions_) {
    finish();
    return;
  }
  try {
    core_.leave_join("a rank left join by an exception");
  } catch (const std::exception&) {
    // The one under way counts.
  }
}

void Join::finish() {
  if (std::exchange(is_open_, false)) core_.finish_join();
}

void DataParallelCore::begin_join(const JoinOptions& options) {
  if (join_) throw std::logic_error("join: the scope of another join is open");
  if (options_.skip_all_reduce_unused_params) {
    throw std::logic_error(
        "join cannot be used with skip_all_reduce_unused_params: a rank without input does not "
        "know which buckets the others leave out");
  }
  if (group_->size() == 1) return;
  join_ = std::make_unique<JoinCalls>(group_, options);
  reducer_->set_join(join_.get());
}

void DataParallelCore::leave_join(const std::string& reason) {
  reducer_->set_join(nullptr);
  if (std::exchange(join_, nullptr)) group_->abort(reason);
}

void DataParallelCore::announce_forward(bool with_buffers) {
  if (!with_buffers && !join_->options().throw_on_early_termination) return;
  join_->announce(with_buffers ? JoinCalls::Call::kBuffers : JoinCalls::Call::kForward);
  const Rank ended = join_->first_ended();
  if (ended < 0) return;
  // All ranks end here, so nobody is left waiting in the scope.
  reducer_->set_join(nullptr);
  join_.reset();
  throw std::runtime_error(
      fmt::format("join: rank {} has no input left, and throw_on_early_termination is set", ended));
}

void DataParallelCore::announce_step() {
  if (!join_) return;
  if (options_.find_unused_parameters) {
    throw std::logic_error(
        "join: a rank without input does not know which parameters the others have not used, so "
        "find_unused_parameters does not go with a ZeroRedundancyOptimizer");
  }
  join_->announce(JoinCalls::Call::kStep);
}

void DataParallelCore::finish_join() {
  if (!join_) return;
  bool is_last = true;
  try {
    std::uint64_t shadowed = 0;
    while (shadow_others()) {
      is_last = false;
      if (++shadowed == kManyIterations) {
        TORCH_WARN("join: this rank has had no input for ", shadowed,
                   " steps of the others; uneven input costs all ranks time");
      }
    }
  } catch (...) {
    reducer_->set_join(nullptr);
    join_.reset();
    throw;
  }
  reducer_->set_join(nullptr);
  join_.reset();
  if (sharded_step_.wait) sharded_step_.wait();
  broadcast_last_model(is_last);
}

// Does what the ranks with input do next. False if there is none.
bool DataParallelCore::shadow_others() {
  using Call = JoinCalls::Call;
  const bool ends = join_->options().throw_on_early_termination;
  join_->announce(ends ? Call::kTerminate : Call::kJoined);
  if (join_->live() == 0) return false;
  if (ends) {
    throw std::runtime_error(fmt::format(
        "join: rank {} has no input left, other ranks have; throw_on_early_termination is set",
        group_->rank()));
  }
  if (join_->call() == Call::kBuffers) {
    buffers_as_of_ = reducer_->synced_passes();
    buffers_->run(*group_, join_->first_live(), "buffers");
  } else if (join_->call() == Call::kBackward) {
    reducer_->shadow_backward();
  } else if (join_->call() == Call::kStep) {
    sharded_step_.shadow();
  }
  return true;
}

void DataParallelCore::broadcast_last_model(bool is_last) {
  std::int64_t mine = is_last ? 1 : 0;
  std::vector<std::int64_t> all(static_cast<std::size_t>(group_->size()));
  group_
      ->all_gather({&mine, 1, DType::kI64}, {all.data(), all.size(), DType::kI64},
                   {{}, "join: who came last"})
      ->wait();
  Rank root = 0;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != 0) root = static_cast<Rank>(rank);
  }
  CoalescedBroadcast(state_.tensors()).run(*group_, root, "join: the last model");
}

}  // namespace ddp
