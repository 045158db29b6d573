#include "worker/ddp/hooks/batched_power_sgd_hook.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "worker/ddp/hooks/bucket_text.h"
#include "worker/ddp/hooks/default_hooks.h"
#include "worker/ddp/hooks/orthogonalize.h"
#include "worker/ddp/hooks/power_sgd_memory.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

std::int64_t side_of(std::int64_t numel) {
  auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(numel)));
  while (side * side < numel) ++side;
  return side;
}

void remember(const BatchedPowerSGDBucket& made, const GradBucket& bucket, PowerSGDState& state) {
  PowerSGDState::Memory& memory = state.memory();
  move_to(memory.qs, made.key, made.q.values().view({made.side, made.rank}), "PowerSGD's Q");
  if (!state.options().use_error_feedback) return;
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < bucket.names().size(); ++i) {
    const std::int64_t numel = bucket.gradients()[i].numel();
    move_to(memory.errors, bucket.names()[i], made.square.narrow(0, offset, numel),
            "PowerSGD's error");
    offset += numel;
  }
  move_to(memory.paddings, made.key, made.square.narrow(0, offset, made.square.numel() - offset),
          "PowerSGD's error of the padding");
}

std::shared_ptr<BatchedPowerSGDBucket> square_memory(PowerSGDState& state,
                                                     const GradBucket& bucket) {
  PowerSGDState::Memory& memory = state.memory();
  if (auto found = memory.batched_buckets.find(bucket)) return found;
  const at::ScalarType type = bucket.buffer().scalar_type();
  const at::TensorOptions computed(PowerSGDState::Memory::compute_type(type));
  auto made = std::make_shared<BatchedPowerSGDBucket>();
  made->text = bucket_text(bucket);
  made->key = bucket_key(bucket);
  made->side = side_of(bucket.buffer().numel());
  made->rank = std::min<std::int64_t>(made->side, state.options().matrix_approximation_rank);
  made->square = at::zeros({made->side * made->side}, computed);
  made->tail = at::zeros({made->side - bucket.buffer().numel() / made->side, made->side}, computed);
  made->p = PowerSGDFactor(state.process_group(), made->side * made->rank, type);
  made->q = PowerSGDFactor(state.process_group(), made->side * made->rank, type);
  remember(*made, bucket, state);
  memory.batched_buckets.put(bucket, made);
  return made;
}

// One run of the hook on one bucket, from stage to stage.
class BatchedRun {
 public:
  BatchedRun(PowerSGDState& state, const GradBucket& bucket,
             std::shared_ptr<BatchedPowerSGDBucket> made)
      : state_(&state),
        made_(std::move(made)),
        buffer_(bucket.buffer()),
        p_(made_->p.values().view({made_->side, made_->rank})),
        q_(made_->q.values().view({made_->side, made_->rank})),
        square_(made_->square.view({made_->side, made_->side})) {}

  Future start() {
    const at::Tensor place = made_->square.narrow(0, 0, buffer_.numel());
    if (state_->options().use_error_feedback) {
      place.add_(buffer_);
    } else {
      place.copy_(buffer_);
    }
    state_->memory().prepare(state_->options(), made_->key, q_);
    at::mm_out(p_, square_, q_);
    return Future(made_->p.all_reduce(state_->process_group(), ReduceOp::kSum,
                                      made_->text + ", PowerSGD's P"),
                  buffer_);
  }

  // P is there.
  Future compute_q() {
    made_->p.receive();
    orthogonalize(p_.unsqueeze(0), state_->options().orthogonalization_epsilon);
    at::mm_out(q_, square_.t(), p_);
    return Future(made_->q.all_reduce(state_->process_group(), ReduceOp::kAvg,
                                      made_->text + ", PowerSGD's Q"),
                  buffer_);
  }

  // Q is there. Most rows of the product lie in the bucket as they are.
  at::Tensor decompress() {
    made_->q.receive();
    const std::int64_t side = made_->side;
    const std::int64_t rows = buffer_.numel() / side;
    const at::Tensor q = q_.t();
    at::Tensor whole_rows = buffer_.narrow(0, 0, rows * side).view({rows, side});
    if (whole_rows.scalar_type() == p_.scalar_type()) {
      at::mm_out(whole_rows, p_.narrow(0, 0, rows), q);
    } else {
      whole_rows.copy_(at::mm(p_.narrow(0, 0, rows), q));
    }
    const std::int64_t left = buffer_.numel() - rows * side;
    if (rows < side) at::mm_out(made_->tail, p_.narrow(0, rows, side - rows), q);
    buffer_.narrow(0, rows * side, left).copy_(made_->tail.view({-1}).narrow(0, 0, left));
    if (state_->options().use_error_feedback) {
      square_.narrow(0, 0, rows).sub_(whole_rows);
      if (rows < side) square_.narrow(0, rows, side - rows).sub_(made_->tail);
    }
    return buffer_;
  }

 private:
  PowerSGDState* state_;
  std::shared_ptr<BatchedPowerSGDBucket> made_;
  at::Tensor buffer_;
  at::Tensor p_;
  at::Tensor q_;
  at::Tensor square_;
};

}  // namespace

Future batched_powerSGD_hook(PowerSGDState& state, GradBucket& bucket) {
  PowerSGDState::Memory& memory = state.memory();
  if (memory.iter < state.options().start_powerSGD_iter || bucket.buffer().numel() == 0) {
    memory.advance(bucket);
    return allreduce_hook(state.process_group(), bucket);
  }
  std::shared_ptr<BatchedPowerSGDBucket> made = square_memory(state, bucket);
  memory.count(state, bucket, bucket.buffer().numel(), 2 * made->side * made->rank);
  auto run = std::make_shared<BatchedRun>(state, bucket, std::move(made));
  Future started = run->start();
  memory.advance(bucket);
  return std::move(started)
      .then([run](const at::Tensor&) { return run->compute_q(); })
      .then([run](const at::Tensor&) { return run->decompress(); });
}

}  // namespace ddp
