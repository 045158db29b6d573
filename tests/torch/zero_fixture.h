#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <torch/torch.h>

#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/models.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/zero/zero_redundancy_optimizer.h"

// The training of the tests of ZeroRedundancyOptimizer: the same with and without dividing the
// optimizer.
namespace ddp::test {

using Model = DistributedDataParallel<Mlp>;
using Parameters = std::vector<at::Tensor>;

// Nothing in it divides evenly.
inline const std::vector<std::int64_t> kUneven = {6, 37, 11, 4};
// Shares beyond ZeroPartition's cache lines.
inline const std::vector<std::int64_t> kLarge = {6, 401, 67, 4};

struct OptimizerCase {
  const char* name;
  std::function<std::unique_ptr<torch::optim::Optimizer>(const Parameters&)> make;
};

inline std::vector<OptimizerCase> optimizers() {
  using namespace torch::optim;
  return {
      {"SGD", [](const Parameters& p) { return std::make_unique<SGD>(p, SGDOptions(0.1)); }},
      {"SGD with momentum",
       [](const Parameters& p) {
         return std::make_unique<SGD>(
             p, SGDOptions(0.1).momentum(0.9).weight_decay(1e-2).nesterov(true));
       }},
      {"Adam",
       [](const Parameters& p) {
         return std::make_unique<Adam>(p, AdamOptions(1e-2).weight_decay(1e-2).amsgrad(true));
       }},
      {"AdamW", [](const Parameters& p) { return std::make_unique<AdamW>(p, AdamWOptions(1e-2)); }},
      {"RMSprop",
       [](const Parameters& p) {
         return std::make_unique<RMSprop>(p, RMSpropOptions(1e-2).momentum(0.5).centered(true));
       }},
      {"Adagrad",
       [](const Parameters& p) { return std::make_unique<Adagrad>(p, AdagradOptions(1e-2)); }},
  };
}

inline DistributedDataParallelOptions small_buckets(bool views = true) {
  DistributedDataParallelOptions options;
  options.bucket_cap_mb = 0.001;  // Several buckets, each of several parameters.
  options.first_bucket_mb = 0.0005;
  options.gradient_as_bucket_view = views;
  return options;
}

// Steps [first, last) of a training.
inline void train(Model& model, int rank, int first, int last, const std::function<void()>& step,
                  const std::function<void()>& zero_grad) {
  for (int at = first; at < last; ++at) {
    zero_grad();
    loss_of(model.forward(input_of(rank, at))).backward();
    step();
  }
}

inline void train(Model& model, int rank, int first, int last, torch::optim::Optimizer& optimizer) {
  train(
      model, rank, first, last, [&] { optimizer.step(); }, [&] { model.zero_grad(); });
}

inline void train(Model& model, int rank, int first, int last, ZeroRedundancyOptimizer& optimizer) {
  train(
      model, rank, first, last, [&] { optimizer.step(); }, [&] { optimizer.zero_grad(); });
}

// An optimizer over a model's parameters, divided or as it is.
class EitherWay {
 public:
  template <typename M>
  EitherWay(torch::optim::Optimizer& plain, DistributedDataParallel<M>& model, bool divided)
      : plain_(plain), zero_grad_([&model] { model.zero_grad(); }) {
    if (divided) zero_ = std::make_unique<ZeroRedundancyOptimizer>(plain, model);
  }
  void zero_grad() { zero_ ? zero_->zero_grad() : zero_grad_(); }
  void step() {
    if (zero_) {
      zero_->step();
    } else {
      plain_.step();
    }
  }
  ZeroRedundancyOptimizer* zero() { return zero_.get(); }

 private:
  torch::optim::Optimizer& plain_;
  std::function<void()> zero_grad_;
  std::unique_ptr<ZeroRedundancyOptimizer> zero_;
};

}  // namespace ddp::test
