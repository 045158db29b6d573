#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/train/models/model.h"

namespace ddp::bench {

// What a contender trains: a model with fixed initial weights and a batch of the rank's own, both
// from random numbers.
//
//   mnist     the network and the batch of PEERS/ddp_mnist.py (harness.py): 22 thousand parameters
//   resnet18  16 images of 3 x 64 x 64, ten classes: 11 million parameters
//   resnet50  128 images of 3 x 32 x 32, 1000 classes: 26 million parameters
//   mlp       eight Linear(1024, 1024), 64 rows: 33.6 MB of gradients
struct Task {
  std::shared_ptr<train::Model> model;
  at::Tensor input;
  at::Tensor target;

  at::Tensor loss() const { return model->loss(model->forward(input), target); }
};

// Throws std::invalid_argument for another name.
Task make_task(const std::string& name, int rank);

// An environment variable for all contenders. SET_TO_NONE=1: zero_grad() drops the gradients, as it
// does by default since PyTorch 2.0, and DDP copies the new ones into its buckets. Otherwise the
// gradients stay in the buckets and become zero.
constexpr const char* kSetToNone = "SET_TO_NONE";

// A step of training: zero_grad and forward, then the loss's backward, then the optimizer's step.
struct Step {
  std::function<at::Tensor()> loss;
  std::function<void()> update;
};

// Averages of the steps of one round, in this process.
struct Pace {
  double seconds = 0;  // Until the slowest worker finished the round.
  double backward_seconds = 0;
  double cpu_seconds = 0;  // Of all threads, in user and kernel mode.
};

struct Measurement {
  std::vector<Pace> rounds;
  double loss = 0;
};

// Element i of the result is for contender i. In every round each contender takes `steps` steps, in
// an order that rotates from round to round, so disturbances of the machine affect all alike. The
// first round does not count. `meet` is called before and after each turn, because a job is as fast
// as its slowest worker, even if its workers do not communicate.
std::vector<Measurement> measure_steps(int rounds, int steps, const std::function<void()>& meet,
                                       const std::vector<Step>& contenders);

// {"mode": .., "model": .., "steps_per_second": [..], "backward_ms": [..], "cpu_ms": [..],
// "loss": ..} on stdout.
void print_measurement(const std::string& mode, const std::string& model,
                       const Measurement& measurement);

}  // namespace ddp::bench
