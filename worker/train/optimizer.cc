#include "worker/train/optimizer.h"

#include <utility>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

namespace ddp::train {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Options& options,
                                                        std::vector<at::Tensor> parameters) {
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  switch (options.optimizer) {
    case OptimizerKind::kSgd:
      optimizer = std::make_unique<torch::optim::SGD>(std::move(parameters),
                                                      torch::optim::SGDOptions(options.lr));
      break;
    case OptimizerKind::kAdam:
      optimizer = std::make_unique<torch::optim::Adam>(std::move(parameters),
                                                       torch::optim::AdamOptions(options.lr));
      break;
    case OptimizerKind::kAdamW:
      optimizer = std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                        torch::optim::AdamWOptions(options.lr));
      break;
  }
  set_hyper_parameters(*optimizer, options);
  return optimizer;
}

void set_hyper_parameters(torch::optim::Optimizer& optimizer, const Options& options) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    torch::optim::OptimizerOptions& own = group.options();
    switch (options.optimizer) {
      case OptimizerKind::kSgd:
        static_cast<torch::optim::SGDOptions&>(own)
            .momentum(options.momentum)
            .weight_decay(options.weight_decay);
        break;
      case OptimizerKind::kAdam:
        static_cast<torch::optim::AdamOptions&>(own).weight_decay(options.weight_decay);
        break;
      case OptimizerKind::kAdamW:
        static_cast<torch::optim::AdamWOptions&>(own).weight_decay(options.weight_decay);
        break;
    }
  }
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    group.options().set_lr(rate);
  }
}

}  // namespace ddp::train
