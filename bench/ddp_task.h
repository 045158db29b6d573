#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/train/models/model.h"

namespace ddp::bench {

// What a contender trains: a model with fixed weights and a batch that is the rank's own, both from
// random numbers.
//
//   mnist     the network and the batch of shared/peers/ddp_mnist.py: 22 thousand parameters
//   resnet18  16 images of 3 x 64 x 64, ten classes: 11 million parameters
//   mlp       eight Linear(1024, 1024), 64 rows: 33.6 MB of gradients
struct Task {
  std::shared_ptr<train::Model> model;
  at::Tensor input;
  at::Tensor target;

  at::Tensor loss() const { return model->loss(model->forward(input), target); }
};

// Throws std::invalid_argument for another name.
Task make_task(const std::string& name, int rank);

// Steps a second in each round; the first round does not count. `meet` is called before each, to
// begin together.
std::vector<double> measure_steps(int rounds, int steps, const std::function<void()>& meet,
                                  const std::function<void()>& step);

// {"mode": .., "model": .., "steps_per_second": [..], "loss": ..} on stdout.
void print_rates(const std::string& mode, const std::string& model,
                 const std::vector<double>& rates, double loss);

}  // namespace ddp::bench
