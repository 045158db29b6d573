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

// Sets momentum and weight decay from the command line, which overrides the values of a loaded
// checkpoint. The learning rate is not set here but before every step.
void set_hyper_parameters(torch::optim::Optimizer& optimizer, const Options& options);

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate);

}  // namespace ddp::train
