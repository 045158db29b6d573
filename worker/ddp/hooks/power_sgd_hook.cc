#include "worker/ddp/hooks/power_sgd_hook.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "worker/ddp/hooks/bucket_text.h"
#include "worker/ddp/hooks/default_hooks.h"
#include "worker/ddp/hooks/orthogonalize.h"
#include "worker/ddp/hooks/power_sgd_memory.h"
#include "worker/ddp/tensors/tensors.h"
#include "worker/ddp/tensors/works.h"

namespace ddp {
namespace {

struct MatrixShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t rank = 0;
};

// Rows are the dimension that lies outermost in memory: the first, unless the parameter is
// transposed.
MatrixShape shape_of(const at::Tensor& gradient, int max_rank) {
  MatrixShape shape;
  shape.rows = 1;
  std::int64_t stride = -1;
  for (std::int64_t dim = 0; dim < gradient.dim(); ++dim) {
    if (gradient.stride(dim) <= stride) continue;
    stride = gradient.stride(dim);
    shape.rows = gradient.size(dim);
  }
  shape.columns = shape.rows == 0 ? 0 : gradient.numel() / shape.rows;
  shape.rank = std::min<std::int64_t>({shape.rows, shape.columns, max_rank});
  return shape;
}

bool is_worth_it(const MatrixShape& shape, double min_rate) {
  return static_cast<double>((shape.rows + shape.columns) * shape.rank) * min_rate <
         static_cast<double>(shape.rows * shape.columns);
}

// The gradient's memory as a matrix.
at::Tensor matrix_of(const at::Tensor& gradient, const PowerSGDBatch& batch) {
  return gradient.as_strided({batch.rows, batch.columns}, {batch.columns, 1},
                             gradient.storage_offset());
}

void plan(PowerSGDBucket& made, const GradBucket& bucket, const PowerSGDOptions& options) {
  for (std::size_t index = 0; index < bucket.gradients().size(); ++index) {
    const at::Tensor& gradient = bucket.gradients()[index];
    const MatrixShape shape = shape_of(gradient, options.matrix_approximation_rank);
    made.numel_before += gradient.numel();
    if (!is_worth_it(shape, options.min_compression_rate)) {
      made.uncompressed.push_back(index);
      made.numel_after += gradient.numel();
      continue;
    }
    made.numel_after += (shape.rows + shape.columns) * shape.rank;
    const auto same = std::find_if(
        made.batches.begin(), made.batches.end(), [&shape](const PowerSGDBatch& batch) {
          return batch.rows == shape.rows && batch.columns == shape.columns;
        });
    if (options.batch_tensors_with_same_shape && same != made.batches.end()) {
      same->members.push_back(index);
    } else {
      made.batches.push_back({{index}, shape.rows, shape.columns, shape.rank, {}, {}, {}});
    }
  }
}

// The next matrices of a flat tensor.
at::Tensor take(const at::Tensor& flat, std::int64_t& offset, const PowerSGDBatch& batch,
                std::int64_t rows) {
  const auto count = static_cast<std::int64_t>(batch.members.size());
  const std::int64_t numel = count * rows * batch.rank;
  offset += numel;
  return flat.narrow(0, offset - numel, numel).view({count, rows, batch.rank});
}

void allocate(PowerSGDBucket& made, const GradBucket& bucket, PowerSGDState& state) {
  const at::ScalarType type = bucket.buffer().scalar_type();
  const at::ScalarType computed = PowerSGDState::Memory::compute_type(type);
  ProcessGroup& group = state.process_group();
  std::int64_t p_numel = 0;
  std::int64_t q_numel = 0;
  for (const PowerSGDBatch& batch : made.batches) {
    const auto count = static_cast<std::int64_t>(batch.members.size());
    p_numel += count * batch.rows * batch.rank;
    q_numel += count * batch.columns * batch.rank;
  }
  made.p = PowerSGDFactor(group, p_numel, type);
  made.q = PowerSGDFactor(group, q_numel, type);
  std::int64_t p_offset = 0;
  std::int64_t q_offset = 0;
  for (PowerSGDBatch& batch : made.batches) {
    batch.p = take(made.p.values(), p_offset, batch, batch.rows);
    batch.q = take(made.q.values(), q_offset, batch, batch.columns);
    const auto count = static_cast<std::int64_t>(batch.members.size());
    if (state.options().use_error_feedback || count > 1 || computed != type) {
      batch.matrices = at::zeros({count, batch.rows, batch.columns}, at::TensorOptions(computed));
    }
  }
  std::vector<at::Tensor> uncompressed;
  std::int64_t numel = 0;
  for (const std::size_t index : made.uncompressed) {
    uncompressed.push_back(bucket.gradients()[index]);
    numel += uncompressed.back().numel();
  }
  if (numel == 0) return;
  made.uncompressed_flat = registered_zeros(group, numel, type);
  made.uncompressed_slots = slots_of(made.uncompressed_flat, uncompressed);
}

// Moves the known values of the parameters into the bucket's new memory.
void remember(const PowerSGDBucket& made, const GradBucket& bucket, PowerSGDState& state) {
  PowerSGDState::Memory& memory = state.memory();
  for (const PowerSGDBatch& batch : made.batches) {
    for (std::size_t i = 0; i < batch.members.size(); ++i) {
      const std::string& name = bucket.names()[batch.members[i]];
      const auto at_i = static_cast<std::int64_t>(i);
      move_to(memory.qs, name, batch.q[at_i], "PowerSGD's Q");
      if (!state.options().use_error_feedback) continue;
      move_to(memory.errors, name, batch.matrices[at_i], "PowerSGD's error");
    }
  }
}

std::shared_ptr<PowerSGDBucket> bucket_memory(PowerSGDState& state, const GradBucket& bucket) {
  PowerSGDState::Memory& memory = state.memory();
  if (auto found = memory.buckets.find(bucket)) return found;
  auto made = std::make_shared<PowerSGDBucket>();
  made->text = bucket_text(bucket);
  plan(*made, bucket, state.options());
  if (!made->batches.empty()) {
    allocate(*made, bucket, state);
    remember(*made, bucket, state);
  }
  memory.buckets.put(bucket, made);
  return made;
}

// One run of the hook on one bucket, from stage to stage.
class Run {
 public:
  Run(PowerSGDState& state, const GradBucket& bucket, std::shared_ptr<PowerSGDBucket> made)
      : state_(&state),
        made_(std::move(made)),
        buffer_(bucket.buffer()),
        gradients_(bucket.gradients()) {}

  Future start(const std::vector<std::string>& names) {
    ProcessGroup& group = state_->process_group();
    std::vector<WorkPtr> works;
    if (made_->uncompressed_flat.defined()) {
      for (std::size_t i = 0; i < made_->uncompressed_slots.size(); ++i) {
        copy_values(made_->uncompressed_slots[i], gradients_[made_->uncompressed[i]]);
      }
      works.push_back(group.all_reduce(buffer_of(made_->uncompressed_flat), ReduceOp::kAvg,
                                       {{}, made_->text + ", what is not compressed"}));
    }
    const PowerSGDState::Memory& memory = state_->memory();
    for (const PowerSGDBatch& batch : made_->batches) {
      for (std::size_t i = 0; i < batch.members.size(); ++i) {
        memory.prepare(state_->options(), names[batch.members[i]],
                       batch.q[static_cast<std::int64_t>(i)]);
      }
      load(batch);
      at::Tensor p = batch.p;
      at::bmm_out(p, matrices(batch), batch.q);
    }
    works.push_back(made_->p.all_reduce(group, ReduceOp::kSum, made_->text + ", PowerSGD's P"));
    return Future(join_works(std::move(works)), buffer_);
  }

  // P is there.
  Future compute_q() const {
    for (std::size_t i = 0; i < made_->uncompressed_slots.size(); ++i) {
      copy_values(gradients_[made_->uncompressed[i]], made_->uncompressed_slots[i]);
    }
    made_->p.receive();
    for (const PowerSGDBatch& batch : made_->batches) {
      orthogonalize(batch.p, state_->options().orthogonalization_epsilon);
      at::Tensor q = batch.q;
      at::bmm_out(q, matrices(batch).transpose(1, 2), batch.p);
    }
    return Future(made_->q.all_reduce(state_->process_group(), ReduceOp::kAvg,
                                      made_->text + ", PowerSGD's Q"),
                  buffer_);
  }

  // Q is there.
  at::Tensor decompress() const {
    made_->q.receive();
    for (const PowerSGDBatch& batch : made_->batches) {
      for (std::size_t i = 0; i < batch.members.size(); ++i) {
        const auto at_i = static_cast<std::int64_t>(i);
        at::Tensor gradient = matrix_of(gradients_[batch.members[i]], batch);
        if (gradient.scalar_type() == batch.p.scalar_type()) {
          at::mm_out(gradient, batch.p[at_i], batch.q[at_i].t());
        } else {
          gradient.copy_(at::mm(batch.p[at_i], batch.q[at_i].t()));
        }
        if (state_->options().use_error_feedback) batch.matrices[at_i].sub_(gradient);
      }
    }
    return buffer_;
  }

 private:
  // What is to be compressed, [batch, rows, columns].
  at::Tensor matrices(const PowerSGDBatch& batch) const {
    if (batch.matrices.defined()) return batch.matrices;
    return matrix_of(gradients_[batch.members.front()], batch).unsqueeze(0);
  }

  void load(const PowerSGDBatch& batch) const {
    if (!batch.matrices.defined()) return;
    for (std::size_t i = 0; i < batch.members.size(); ++i) {
      const at::Tensor place = batch.matrices[static_cast<std::int64_t>(i)];
      const at::Tensor gradient = matrix_of(gradients_[batch.members[i]], batch);
      if (state_->options().use_error_feedback) {
        place.add_(gradient);
      } else {
        place.copy_(gradient);
      }
    }
  }

  PowerSGDState* state_;
  std::shared_ptr<PowerSGDBucket> made_;
  at::Tensor buffer_;
  std::vector<at::Tensor> gradients_;
};

}  // namespace

Future powerSGD_hook(PowerSGDState& state, GradBucket& bucket) {
  PowerSGDState::Memory& memory = state.memory();
  if (memory.iter < state.options().start_powerSGD_iter) {
    memory.advance(bucket);
    return allreduce_hook(state.process_group(), bucket);
  }
  std::shared_ptr<PowerSGDBucket> made = bucket_memory(state, bucket);
  memory.count(state, bucket, made->numel_before, made->numel_after);
  if (made->batches.empty()) {
    memory.advance(bucket);
    return allreduce_hook(state.process_group(), bucket);
  }
  auto run = std::make_shared<Run>(state, bucket, std::move(made));
  Future started = run->start(bucket.names());
  memory.advance(bucket);
  return std::move(started)
      .then([run](const at::Tensor&) { return run->compute_q(); })
      .then([run](const at::Tensor&) { return run->decompress(); });
}

}  // namespace ddp
