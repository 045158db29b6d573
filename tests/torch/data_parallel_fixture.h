#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tests/torch/models.h"
#include "worker/ddp/averaging/distributed_data_parallel_core.h"

namespace ddp::test {

// The text of the exception, or "no error".
std::string error_of(const std::function<void()>& action);

// A module that depends on the seed alone, its input for a rank and a step, and a loss.
std::shared_ptr<Mlp> make_mlp(std::uint64_t seed,
                              const std::vector<std::int64_t>& widths = {6, 5, 4});
at::Tensor input_of(int rank, int step = 0);
at::Tensor loss_of(const at::Tensor& output);

// The sum along the tree of a world of that many ranks (collectives/tree_order.h), then one
// multiplication: the result that a group promises bit for bit.
at::Tensor average(const std::vector<at::Tensor>& terms);

// The gradient of each parameter of make_mlp(7) for a rank's inputs, accumulated over steps.
std::map<std::string, at::Tensor> local_gradients(int rank, const std::vector<int>& steps = {0});

// Fails the test unless the module, equal to make_mlp(7), has the average of the ranks' local
// gradients.
void expect_average_gradients(const Mlp& module, int world, const std::vector<int>& steps = {0});

// Options that must not change the result.
struct Mode {
  std::string name;
  DistributedDataParallelOptions options;
};
std::ostream& operator<<(std::ostream& out, const Mode& mode);
std::vector<Mode> modes();

}  // namespace ddp::test
