#include "worker/train/evaluate.h"

#include <array>
#include <cstdint>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/sum.h>

namespace ddp::train {

double evaluate_accuracy(Model& model, const Dataset& data, std::int64_t batch,
                         const EvaluationShares& own, ProcessGroup& group) {
  const bool training = model.is_training();
  model.eval();
  const at::NoGradGuard no_grad;
  std::array<std::int64_t, 2> counts = {0, 0};  // Correct predictions, all predictions.
  const at::Device device = model.parameters().front().device();
  Batch samples;
  std::vector<std::int64_t> indices;
  const auto count_batch = [&] {
    data.fill(indices, samples);
    const at::Tensor best = at::argmax(model.forward(samples.input.to(device)), 1);
    counts[0] += at::sum(at::eq(best.cpu(), samples.target.flatten())).item<std::int64_t>();
    counts[1] += samples.target.numel();
    indices.clear();
  };
  for (int share = own.shares.begin; share < own.shares.end; ++share) {
    for (std::int64_t i = share; i < data.size(); i += own.of) {
      indices.push_back(i);
      if (static_cast<std::int64_t>(indices.size()) == batch) count_batch();
    }
    if (!indices.empty()) count_batch();
  }
  model.train(training);
  group
      .all_reduce({counts.data(), counts.size(), DType::kI64}, ReduceOp::kSum,
                  {.timeout = {}, .tag = "test accuracy"})
      ->wait();
  return static_cast<double>(counts[0]) / static_cast<double>(counts[1]);
}

}  // namespace ddp::train
