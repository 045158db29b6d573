// ddp-train's steps of logical ranks, with a model whose buffers matter in training.
#include "worker/train/logical_replica.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/logical/logical_ranks.h"
#include "worker/ddp/replica/replica.h"
#include "worker/train/models/model.h"
#include "worker/train/options.h"

namespace ddp::test {
namespace {

constexpr int kRanks = 4;
constexpr int kSteps = 3;

// What it computes depends on what it has seen.
class Remembering final : public train::Model {
 public:
  Remembering()
      : linear_(register_module("linear", torch::nn::Linear(6, 2))),
        seen_(register_buffer("seen", torch::zeros({6}))),
        forwards_(register_buffer("forwards", torch::zeros({}, torch::kLong))) {
    fill(*this, 7);
  }
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor output = linear_->forward(input + seen_.clone());
    const at::NoGradGuard no_grad;
    seen_.mul_(0.5).add_(input.mean(0));
    forwards_.add_(1);
    return output;
  }
  at::Tensor loss(const at::Tensor& output, const at::Tensor& /*target*/) override {
    return loss_of(output);
  }
  bool classifies() const override { return false; }

 private:
  torch::nn::Linear linear_;
  at::Tensor seen_;
  at::Tensor forwards_;
};

struct Trained {
  std::shared_ptr<Remembering> model = std::make_shared<Remembering>();
  torch::optim::SGD sgd{model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};

  void backward(Replica& replica, Rank rank, int step) const {
    model->loss(replica.forward([&] { return model->forward(input_of(rank, step)); }), {})
        .backward();
  }
};

std::string with_logical_ranks(const GroupPtr& group, double max_norm) {
  Trained trained;
  LogicalRanks ranks(kRanks, 1);
  train::LogicalReplica replica({}, trained.model, trained.sgd, group, ranks);
  for (int step = 0; step < kSteps; ++step) {
    replica.zero_grad();
    for (Rank logical = replica.own().begin; logical < replica.own().end; ++logical) {
      replica.begin(logical);
      trained.backward(replica, logical, step);
      replica.end(logical);
    }
    if (max_norm > 0) replica.clip_grad_norm(max_norm);
    replica.step();
  }
  return bytes_of(*trained.model);
}

std::string with_workers(const GroupPtr& group, double max_norm) {
  Trained trained;
  const auto replica = Replica::make({}, trained.model, trained.sgd, group);
  for (int step = 0; step < kSteps; ++step) {
    replica->zero_grad();
    trained.backward(*replica, group->rank(), step);
    if (max_norm > 0) replica->clip_grad_norm(max_norm);
    replica->step();
  }
  replica->broadcast_buffers();
  return bytes_of(*trained.model);
}

TEST(LogicalReplica, BeginsEveryLogicalRankWithTheSameBuffersAndKeepsThoseOfTheFirst) {
  for (const double max_norm : {0.0, 0.01}) {
    std::string expected;
    run_ranks({kRanks}, [&](const GroupPtr& group) {
      const std::string bytes = with_workers(group, max_norm);
      if (group->rank() == 0) expected = bytes;
    });
    for (const int workers : {1, 2, 3, 4}) {
      run_ranks({workers}, [&](const GroupPtr& group) {
        EXPECT_EQ(with_logical_ranks(group, max_norm), expected) << workers << " workers";
      });
    }
  }
}

// As after a failure in the middle of one.
TEST(LogicalReplica, AStepThatWasNotFinishedLeavesNothing) {
  run_ranks({1}, [](const GroupPtr& group) {
    std::vector<std::string> bytes;
    for (const bool is_disturbed : {false, true}) {
      Trained trained;
      LogicalRanks ranks(2, 1);
      train::LogicalReplica replica({}, trained.model, trained.sgd, group, ranks);
      const auto begin = [&](Rank logical) {
        replica.begin(logical);
        trained.backward(replica, logical, 0);
      };
      if (is_disturbed) {
        const std::vector<at::Tensor> buffers = trained.model->buffers();
        std::vector<at::Tensor> before;
        for (const at::Tensor& buffer : buffers) before.push_back(buffer.clone());
        replica.zero_grad();
        begin(0);
        replica.end(0);
        begin(1);
        for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(before[i]);
      }
      replica.zero_grad();
      for (const Rank logical : {0, 1}) {
        begin(logical);
        replica.end(logical);
      }
      replica.step();
      bytes.push_back(bytes_of(*trained.model));
    }
    EXPECT_EQ(bytes[0], bytes[1]);
  });
}

}  // namespace
}  // namespace ddp::test
