#include "worker/ddp/hooks/power_sgd_memory.h"

#include <cstdio>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include "worker/ddp/hooks/bucket_text.h"
#include "worker/ddp/hooks/orthogonalize.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
PowerSGDFactor::PowerSGDFactor(ProcessGroup& group, std::int64_t numel, at::ScalarType type)
    : wire_(registered_zeros(group, numel, type)) {
  const at::ScalarType computed = PowerSGDState::Memory::compute_type(type);
  values_ = computed == type ? wire_ : at::zeros({numel}, at::TensorOptions(computed));
}

WorkPtr PowerSGDFactor::all_reduce(ProcessGroup& group, ReduceOp op, const std::string& tag) const {
  if (!wire_.is_same(values_)) wire_.copy_(values_);
  return group.all_reduce(buffer_of(wire_), op, {{}, tag});
}

void PowerSGDFactor::receive() const {
  if (!wire_.is_same(values_)) values_.copy_(wire_);
}

at::ScalarType PowerSGDState::Memory::compute_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

void PowerSGDState::Memory::draw(const PowerSGDOptions& options, const std::string& name,
                                 const at::Tensor& q) const {
  const std::uint64_t hash = hash_of(fmt::format("{}/{}/{}", options.random_seed, iter, name));
  // LibTorch's generator takes 32 bits of a seed.
  const std::uint64_t seed = (hash ^ (hash >> 32U)) & 0xffffffffU;
  q.copy_(at::randn(q.sizes(), at::detail::createCPUGenerator(seed), q.options()));
}

void PowerSGDState::Memory::prepare(const PowerSGDOptions& options, const std::string& name,
                                    const at::Tensor& q) const {
  const at::Tensor matrix = q.unsqueeze(0);
  if (!options.warm_start || !has_full_columns(matrix)) draw(options, name, q);
  orthogonalize(matrix, options.orthogonalization_epsilon);
}

void PowerSGDState::Memory::count(const PowerSGDState& state, const GradBucket& bucket,
                                  std::int64_t before, std::int64_t after) {
  numel_before += before;
  numel_after += after;
  if (!bucket.is_last() || iter < next_report) return;
  next_report = iter + state.options().compression_stats_logging_frequency;
  if (state.process_group().rank() != 0) return;
  const CompressionStats stats = state.compression_stats();
  const std::string line =
      fmt::format("PowerSGD: step {}, {} elements compressed to {}, rate {:.1f}", iter,
                  stats.numel_before_compression, stats.numel_after_compression, stats.rate);
  if (state.on_stats) {
    state.on_stats(line);
  } else {
    fmt::print(stderr, "{}\n", line);
  }
}

}  // namespace ddp
