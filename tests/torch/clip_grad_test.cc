#include "worker/ddp/averaging/clip_grad.h"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "tests/torch/recording_group.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/averaging/distributed_optimizer.h"
#include "worker/ddp/tensors/mesh_reduce.h"

namespace ddp::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Parameters with gradients of several types, sizes and layouts, and without.
std::vector<at::Tensor> some_gradients(std::uint64_t seed) {
  std::vector<at::Tensor> parameters;
  for (const std::int64_t size : {1, 7, 8, 1001}) {
    parameters.push_back(torch::zeros({size, 3}).requires_grad_());
    parameters.back().mutable_grad() = random_tensor({size, 3}, seed++);
  }
  parameters[2].mutable_grad() = random_tensor({3, 8}, seed).t();
  parameters.push_back(torch::zeros({5}, torch::kDouble).requires_grad_());
  parameters.back().mutable_grad() = random_tensor({5}, seed + 1).to(torch::kDouble);
  parameters.push_back(torch::zeros({2}).requires_grad_());
  return parameters;
}

TEST(ClipGradNorm, IsPyTorchs) {
  for (const double type : {1.0, 2.0, kInfinity}) {
    for (const double most : {0.5, 1e6}) {
      const auto ours = some_gradients(3);
      const auto theirs = some_gradients(3);
      const double norm = clip_grad_norm_(ours, most, type);
      const double expected = torch::nn::utils::clip_grad_norm_(theirs, most, type);
      EXPECT_NEAR(norm, expected, 1e-5 * expected) << type;
      for (std::size_t i = 0; i + 1 < ours.size(); ++i) {
        EXPECT_TRUE(torch::allclose(ours[i].grad(), theirs[i].grad(), 1e-5, 1e-8)) << type;
        EXPECT_EQ(same_bytes(ours[i].grad(), some_gradients(3)[i].grad()), most > 1);
      }
    }
  }
}

// A C++ module lists it once for each of its names.
TEST(ClipGradNorm, ASharedParameterCountsOnce) {
  const auto once = some_gradients(3);
  auto twice = some_gradients(3);
  twice.push_back(twice[1]);
  EXPECT_EQ(clip_grad_norm_(twice, 0.5), clip_grad_norm_(once, 0.5));
  for (std::size_t i = 0; i + 1 < once.size(); ++i)
    EXPECT_TRUE(same_bytes(twice[i].grad(), once[i].grad())) << i;
}

TEST(ClipGradNorm, SaysWhatItCannotDo) {
  auto parameters = some_gradients(3);
  EXPECT_THROW(clip_grad_norm_(parameters, 1, 3), std::invalid_argument);
  EXPECT_THROW(clip_grad_norm_(parameters, std::nan("")), std::invalid_argument);
  parameters[1].mutable_grad()[3][1] = std::nan("");
  for (const double type : {1.0, 2.0, kInfinity}) {
    EXPECT_THROW(clip_grad_norm_(parameters, 1, type, true), std::runtime_error);
  }
  EXPECT_EQ(parameters[0].grad()[0][0].item<float>(),
            some_gradients(3)[0].grad()[0][0].item<float>());
  EXPECT_TRUE(std::isnan(clip_grad_norm_(parameters, 1)));
  EXPECT_EQ(clip_grad_norm_({}, 1), 0);
}

// The order of the elements counts, not that of the memory, nor how many threads there are.
TEST(ClipGradNorm, HasTheSameBitsForTheSameValues) {
  at::Tensor parameter = torch::zeros({301, 77}).requires_grad_();
  const at::Tensor values = random_tensor({301, 77}, 9);
  parameter.mutable_grad() = values.clone();
  const double norm = clip_grad_norm_({parameter}, 1e9);
  parameter.mutable_grad() = values.t().contiguous().t();
  EXPECT_EQ(clip_grad_norm_({parameter}, 1e9), norm);
  parameter.mutable_grad() = values.to_sparse();
  EXPECT_NEAR(clip_grad_norm_({parameter}, 1), norm, 1e-9);
  EXPECT_NEAR(parameter.grad().to_dense().norm().item<float>(), 1, 1e-5);
}

TEST(ClipGradNorm, BothModesClipTheAverageAlike) {
  run_ranks({3}, [](const GroupPtr& group) {
    const int rank = group->rank();
    auto recording = std::make_shared<RecordingGroup>(group);
    auto hooked = make_mlp(7);
    DistributedDataParallel model(hooked, group);
    torch::optim::SGD plain(hooked->parameters(), 0.5);
    auto stepped = make_mlp(7);
    torch::optim::SGD sgd(stepped->parameters(), 0.5);
    DistributedOptimizer optimizer(sgd, recording);
    auto alone = make_mlp(7);
    torch::optim::SGD joint(alone->parameters(), 0.5);
    for (int step = 0; step < 5; ++step) {
      model.zero_grad();
      loss_of(model(input_of(rank, step))).backward();
      const double norm = clip_grad_norm_(hooked->parameters(), 0.01);
      plain.step();
      optimizer.zero_grad();
      loss_of(stepped->forward(input_of(rank, step))).backward();
      EXPECT_EQ(optimizer.clip_grad_norm_(0.01), norm);
      recording->take();
      optimizer.step();
      EXPECT_TRUE(recording->take().empty()) << "averaged a second time";
      const auto all = mesh_reduce(
          "norms", norm, [](const auto& values) { return values; }, *group);
      EXPECT_THAT(all, testing::Each(norm));

      joint.zero_grad();
      loss_of(alone->forward(torch::cat({input_of(0, step), input_of(1, step), input_of(2, step)})))
          .backward();
      EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.01), norm, 1e-6);
      EXPECT_GT(norm, 0.01);
      joint.step();
    }
    EXPECT_EQ(bytes_of(*hooked), bytes_of(*stepped));
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(torch::allclose(alone->parameters()[i], hooked->parameters()[i], 0, 1e-6));
    }
  });
}

}  // namespace
}  // namespace ddp::test
