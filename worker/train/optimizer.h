#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "worker/train/options.h"

namespace ddp::train {

// The optimizer that the options name, over these parameters.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Options& options,
                                                        std::vector<at::Tensor> parameters);

// Sets what the command line decides, momentum and weight decay: after a checkpoint has set them as
// they were. The learning rate is set before every step anyway.
void set_hyper_parameters(torch::optim::Optimizer& optimizer, const Options& options);

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate);

}  // namespace ddp::train
