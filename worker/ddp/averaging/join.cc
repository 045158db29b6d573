#include "worker/ddp/averaging/join.h"

#include <cstddef>
#include <exception>
#include <stdexcept>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "worker/ddp/averaging/distributed_data_parallel_core.h"
#include "worker/ddp/averaging/join_calls.h"
#include "worker/ddp/averaging/reducer.h"
#include "worker/ddp/tensors/broadcast.h"

namespace ddp {
namespace {

constexpr std::uint64_t kManyIterations = 1000;

}  // namespace

Join::Join(std::vector<DistributedDataParallelCore*> models, const JoinOptions& options)
    : models_(std::move(models)),
      is_open_(options.enable),
      exceptions_(std::uncaught_exceptions()) {
  if (!is_open_) return;
  if (models_.empty()) throw std::invalid_argument("join was given no model");
  const std::shared_ptr<ProcessGroup>& group = models_[0]->group_ptr();
  for (const DistributedDataParallelCore* model : models_) {
    model->check_join();
    if (model->group_ptr() == group) continue;
    throw std::invalid_argument("join: the models use different groups; all must use the same one");
  }
  if (group->size() == 1) return;
  calls_ = std::make_shared<JoinCalls>(group, options);
  for (std::size_t i = 0; i < models_.size(); ++i) {
    models_[i]->begin_join(calls_, static_cast<int>(i));
  }
}

Join::~Join() noexcept(false) {
  if (!is_open_) return;
  if (std::uncaught_exceptions() == exceptions_) {
    finish();
    return;
  }
  close();
  // If a rank has ended the training, all ranks end here, and none is left waiting.
  if (!calls_ || calls_->is_over()) return;
  try {
    models_[0]->group().abort("a rank left join with an exception");
  } catch (const std::exception&) {
    // The exception in flight is the one to report.
  }
}

void Join::close() {
  is_open_ = false;
  for (DistributedDataParallelCore* model : models_) model->end_join();
}

void Join::finish() {
  if (!is_open_) return;
  bool is_last = true;
  try {
    if (calls_ && !calls_->is_over()) shadow_others(is_last);
  } catch (...) {
    close();
    throw;
  }
  const bool is_over = !calls_ || calls_->is_over();
  close();
  if (is_over) return;
  for (DistributedDataParallelCore* model : models_) model->broadcast_last_model(is_last);
}

// Takes part in the collectives of the ranks with input until none has input. is_last: whether this
// rank was among the last to join.
void Join::shadow_others(bool& is_last) {
  using Call = JoinCalls::Call;
  const bool ends = calls_->options().throw_on_early_termination;
  for (std::uint64_t shadowed = 0;;) {
    calls_->announce(ends ? Call::kTerminate : Call::kJoined);
    if (calls_->live() == 0) return;
    if (ends) {
      throw std::runtime_error(fmt::format(
          "join: rank {} has no input left, other ranks have; throw_on_early_termination is set",
          models_[0]->group().rank()));
    }
    is_last = false;
    models_.at(static_cast<std::size_t>(calls_->model()))->shadow_call();
    if (++shadowed == kManyIterations) {
      TORCH_WARN("join: this rank has had no input for ", shadowed,
                 " steps of the others; uneven input costs all ranks time");
    }
  }
}

bool DistributedDataParallelCore::is_joining() const {
  return join_ != nullptr && !join_->is_over();
}

void DistributedDataParallelCore::check_join() const {
  if (join_) throw std::logic_error("join: the model is already in the scope of another join");
  if (options_.skip_all_reduce_unused_params) {
    throw std::logic_error(
        "join cannot be used with skip_all_reduce_unused_params: a rank without input does not "
        "know which buckets the others leave out");
  }
}

void DistributedDataParallelCore::begin_join(std::shared_ptr<JoinCalls> calls, int model) {
  join_ = std::move(calls);
  join_model_ = model;
  reducer_->set_join(join_.get(), model);
}

void DistributedDataParallelCore::end_join() {
  reducer_->set_join(nullptr);
  join_.reset();
}

void DistributedDataParallelCore::announce_forward(bool with_buffers) {
  if (!with_buffers && !join_->options().throw_on_early_termination) return;
  join_->announce(with_buffers ? JoinCalls::Call::kBuffers : JoinCalls::Call::kForward,
                  join_model_);
  const Rank ended = join_->first_ended();
  if (ended < 0) return;
  join_->end();
  throw std::runtime_error(
      fmt::format("join: rank {} has no input left, and throw_on_early_termination is set", ended));
}

void DistributedDataParallelCore::announce_step() {
  if (!is_joining()) return;
  if (options_.find_unused_parameters) {
    throw std::logic_error(
        "join: a rank without input does not know which parameters the others have not used, so "
        "find_unused_parameters cannot be used with a ZeroRedundancyOptimizer");
  }
  join_->announce(JoinCalls::Call::kStep, join_model_);
}

void DistributedDataParallelCore::shadow_call() {
  using Call = JoinCalls::Call;
  const Call call = join_->call();
  if (call == Call::kBuffers) {
    buffers_as_of_ = reducer_->synced_passes();
    buffers_->run(*group_, join_->first_live(), "buffers");
  } else if (call == Call::kBackward) {
    reducer_->shadow_backward();
  } else if (call == Call::kStep) {
    sharded_step_.shadow();
  }
}

void DistributedDataParallelCore::broadcast_last_model(bool is_last) {
  if (sharded_step_.wait) sharded_step_.wait();
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
  CoalescedBroadcast(parameters_and(options_.syncs_buffers()))
      .run(*group_, root, "join: the last model");
}

}  // namespace ddp
