// Several workers must train the same weights as one process with their joint batch. Every run has
// its own processes, with the groups that ddp-run's workers use.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/torch/models.h"
#include "tests/torch/worker_processes.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/averaging/distributed_optimizer.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp::test {
namespace {

constexpr int kSteps = 20;
constexpr std::int64_t kJointBatch = 64;

enum class Net { kMlp, kConv };
enum class Way {
  kOneProcess,
  kHooks,
  kHooksIntoViews,
  kAtStep,
  kCommHook,    // A communication hook that averages.
  kAllOptions,  // All of DistributedDataParallel's that must not change a bit.
};

struct Run {
  Net net = Net::kConv;
  Way way = Way::kHooks;
  double bucket_cap_mb = 25;
};

struct Batch {
  at::Tensor data;
  at::Tensor target;
};

// The rank's part of a step's joint batch.
Batch batch_of(Net net, int step, int rank, int world) {
  const auto seed = static_cast<std::uint64_t>(step);
  const std::int64_t size = kJointBatch / world;
  if (net == Net::kMlp) {
    return {random_tensor({kJointBatch, 20}, seed).narrow(0, rank * size, size),
            torch::randint(10, {kJointBatch}, seeded(seed + 500))
                .to(torch::kLong)
                .narrow(0, rank * size, size)};
  }
  return {random_tensor({kJointBatch, 1, 28, 28}, seed).narrow(0, rank * size, size),
          torch::randint(10, {kJointBatch}, seeded(seed + 500))
              .to(torch::kLong)
              .narrow(0, rank * size, size)};
}

template <typename M>
std::string train(const std::shared_ptr<M>& module, const Run& run,
                  const std::shared_ptr<ProcessGroup>& group) {
  const int rank = run.way == Way::kOneProcess ? 0 : group->rank();
  const int world = run.way == Way::kOneProcess ? 1 : group->size();
  fill(*module, 11 + static_cast<std::uint64_t>(rank));  // Only rank 0's count.
  torch::optim::SGD sgd(module->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
  const auto loss_of = [&](const at::Tensor& output, const Batch& batch) {
    return torch::nll_loss(torch::log_softmax(output, 1), batch.target);
  };
  const auto repeat = [&](const auto& step) {
    for (int index = 0; index < kSteps; ++index) step(batch_of(run.net, index, rank, world));
  };
  if (run.way == Way::kOneProcess) {
    repeat([&](const Batch& batch) {
      sgd.zero_grad();
      loss_of(module->forward(batch.data), batch).backward();
      sgd.step();
    });
  } else if (run.way == Way::kAtStep) {
    broadcast_master_param(*module, *group);
    DistributedOptimizer optimizer(sgd, group);
    repeat([&](const Batch& batch) {
      optimizer.zero_grad();
      loss_of(module->forward(batch.data), batch).backward();
      optimizer.step();
    });
  } else {
    DistributedDataParallelOptions options;
    options.bucket_cap_mb = run.bucket_cap_mb;
    options.gradient_as_bucket_view = run.way != Way::kHooks;
    if (run.way == Way::kAllOptions) {
      const auto names = module->named_parameters().keys();
      options.static_graph = true;
      options.skip_all_reduce_unused_params = true;
      options.bucket_cap_mb_list = {run.bucket_cap_mb / 1000, run.bucket_cap_mb};
      options.delay_all_reduce_named_params = {names[3], names[1]};
      options.param_to_hook_all_reduce = names[0];
    }
    DistributedDataParallel model(module, group, options);
    if (run.way == Way::kCommHook) {
      model.register_comm_hook(group, [](ProcessGroup& of, GradBucket& bucket) {
        return Future(of.all_reduce(buffer_of(bucket.buffer()), ReduceOp::kAvg), bucket.buffer());
      });
    }
    repeat([&](const Batch& batch) {
      model.zero_grad();
      loss_of(model(batch.data), batch).backward();
      sgd.step();
    });
  }
  return bytes_of(*module);
}

// The weights on every rank.
std::vector<std::string> weights(const std::vector<int>& nodes, const Run& run) {
  return run_workers(nodes, [&](const std::shared_ptr<ProcessGroup>& group) {
    at::set_num_threads(1);
    if (run.net == Net::kMlp) {
      return train(std::make_shared<Mlp>(std::vector<std::int64_t>{20, 64, 64, 10}), run, group);
    }
    return train(std::make_shared<ConvNet>(/*batch_norm=*/false), run, group);
  });
}

double distance(const std::string& a, const std::string& b) {
  if (a.size() != b.size() || a.size() < 1000) return HUGE_VAL;
  double largest = 0;
  for (std::size_t at = 0; at < a.size(); at += sizeof(float)) {
    float x = 0;
    float y = 0;
    std::memcpy(&x, a.data() + at, sizeof x);
    std::memcpy(&y, b.data() + at, sizeof y);
    // A NaN would compare as not larger.
    if (!(std::abs(x - y) <= largest)) largest = std::isnan(x - y) ? HUGE_VAL : std::abs(x - y);
  }
  return largest;
}

class Parity : public testing::TestWithParam<Net> {};
INSTANTIATE_TEST_SUITE_P(Nets, Parity, testing::Values(Net::kMlp, Net::kConv),
                         [](const auto& tested) {
                           return tested.param == Net::kMlp ? "Mlp" : "Conv";
                         });

TEST_P(Parity, AnyNumberOfWorkersEqualsOneProcessOnTheJointBatch) {
  const std::string expected = weights({1}, {GetParam(), Way::kOneProcess, 25})[0];
  for (const std::vector<int>& nodes : {std::vector<int>{1}, {2}, {4}, {1, 1}, {2, 2}}) {
    std::string first;
    for (const Way way :
         {Way::kHooks, Way::kHooksIntoViews, Way::kAtStep, Way::kCommHook, Way::kAllOptions}) {
      SCOPED_TRACE(testing::Message() << nodes.size() << " nodes of " << nodes[0] << ", way "
                                      << static_cast<int>(way));
      const auto results = weights(nodes, {GetParam(), way, 25});
      for (const std::string& result : results) EXPECT_EQ(result, results[0]);
      EXPECT_LE(distance(results[0], expected), 1e-6);
      // What is summed in one order is equal to the bit, whoever starts the sum.
      if (first.empty()) first = results[0];
      EXPECT_EQ(results[0], first);
    }
  }
}

TEST_P(Parity, BucketSizesAndPlacementDoNotChangeABit) {
  const std::string expected = weights({4}, {GetParam(), Way::kHooks, 25})[0];
  for (const double cap : {1e-6, 0.003, 0.02}) {
    EXPECT_EQ(weights({4}, {GetParam(), Way::kHooks, cap})[0], expected) << cap;
  }
  EXPECT_EQ(weights({2, 2}, {GetParam(), Way::kHooks, 0.003})[3], expected);
  EXPECT_EQ(weights({3, 1}, {GetParam(), Way::kHooks, 25})[3], expected);
}

}  // namespace
}  // namespace ddp::test
