#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "tests/torch/recording_group.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;

// Passes its input on; in backward, calls a function before the gradient goes further.
struct InBackward : torch::autograd::Function<InBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            std::int64_t action) {
    context->saved_data["action"] = action;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const std::int64_t action = context->saved_data["action"].toInt();
    (*reinterpret_cast<std::function<void()>*>(action))();  // NOLINT(performance-no-int-to-ptr)
    return {gradients[0], {}};
  }
};

// Two layers with a function that backward calls between them.
struct Interrupted : torch::nn::Module {
  explicit Interrupted(std::function<void()> between, std::int64_t hidden = 5, std::int64_t out = 4)
      : action(std::move(between)) {
    first = register_module("first", torch::nn::Linear(6, hidden));
    second = register_module("second", torch::nn::Linear(hidden, out));
    fill(*this, 7);
  }
  at::Tensor forward(const at::Tensor& x) {
    if (fail_forward) throw std::domain_error("no forward today");
    const at::Tensor hidden = torch::tanh(first(x));
    return loss_of(second(InBackward::apply(hidden, reinterpret_cast<std::int64_t>(&action))));
  }
  std::function<void()> action;
  bool fail_forward = false;
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
};

DistributedDataParallelOptions small_buckets() {
  DistributedDataParallelOptions options;
  options.bucket_cap_mb = 1e-6;  // Each parameter its own.
  return options;
}

TEST(Overlap, FullBucketsAreIssuedWhileBackwardGoesOn) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto recording = std::make_shared<RecordingGroup>(group);
    std::vector<std::string> early;
    auto module = std::make_shared<Interrupted>([&] { early = recording->take(); });
    DistributedDataParallel model(module, recording, small_buckets());
    recording->take();
    model(input_of(group->rank())).backward();
    EXPECT_EQ(early, (std::vector<std::string>{"bucket 0 of 4 (second.bias)",
                                               "bucket 1 of 4 (second.weight)"}));
    EXPECT_EQ(recording->take(),
              (std::vector<std::string>{"bucket 2 of 4 (first.bias)",
                                        "bucket 3 of 4 (first.weight)", "order of gradients"}));
  });
}

TEST(Overlap, APieceOfABucketIsIssuedBeforeTheBucketIsFull) {
  run_ranks({2}, [](const GroupPtr& group) {
    std::vector<std::string> early;
    const auto gradients = [&](const DistributedDataParallelOptions& options) {
      auto recording = std::make_shared<RecordingGroup>(group);
      auto module = std::make_shared<Interrupted>([&] { early = recording->take(); }, 256, 300);
      DistributedDataParallel model(module, recording, options);
      recording->take();
      model(input_of(group->rank())).backward();
      EXPECT_EQ(recording->reduced_elsewhere, options.find_unused_parameters ? 1 : 0);
      early.insert(early.end(), {"and later"});
      for (const std::string& tag : recording->take()) early.push_back(tag);
      return gradients_of(*module);
    };
    DistributedDataParallelOptions one_bucket;
    one_bucket.bucket_cap_mb = 100;
    const auto in_pieces = gradients(one_bucket);
    EXPECT_THAT(early, ::testing::ElementsAre(
                           "bucket 0 of 1, piece 0 of 2 (second.weight .. second.bias)",
                           "and later", "bucket 0 of 1, piece 1 of 2 (first.weight .. first.bias)",
                           "order of gradients"));
    // What has to be decided for a bucket is reduced as a bucket.
    one_bucket.find_unused_parameters = one_bucket.skip_all_reduce_unused_params = true;
    gradients(one_bucket);
    EXPECT_THAT(early,
                ::testing::ElementsAre("and later", "bucket 0 of 1 (first.weight .. second.bias)",
                                       "flags of used parameters", "order of gradients"));
    const auto alone = gradients(small_buckets());
    for (std::size_t i = 0; i < alone.size(); ++i)
      EXPECT_TRUE(at::equal(in_pieces[i].second, alone[i].second)) << alone[i].first;
  });
}

TEST(Overlap, AGroupOfOneSendsNothing) {
  run_ranks({1}, [](const GroupPtr& group) {
    auto recording = std::make_shared<RecordingGroup>(group);
    DistributedDataParallel model(make_mlp(7), recording);
    loss_of(model(input_of(0))).backward();
    model.broadcast_buffers();
    EXPECT_TRUE(recording->take().empty());
  });
}

TEST(Failures, AnExceptionInForwardLeavesTheNextIterationIntact) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallel model(make_mlp(7), group);
    auto failing = std::make_shared<Interrupted>([] {});
    DistributedDataParallel second(failing, group);
    failing->fail_forward = true;
    EXPECT_THROW(second(input_of(group->rank())), std::domain_error);
    failing->fail_forward = false;
    loss_of(model(input_of(group->rank()))).backward();
    expect_average_gradients(model.module(), 2);
    second(input_of(group->rank())).backward();
  });
}

TEST(Failures, ABackwardThatThrowsOnOneRankReachesTheOthersAtOnce) {
  run_ranks({3}, [](const GroupPtr& group) {
    bool fail = group->rank() == 1;
    auto module = std::make_shared<Interrupted>([&] {
      if (std::exchange(fail, false)) throw std::domain_error("no backward today");
    });
    std::unique_ptr<DistributedDataParallel<Interrupted>> model;
    try {
      // Rank 1 may be done with all of this before another rank has come out of the constructor.
      model =
          std::make_unique<DistributedDataParallel<Interrupted>>(module, group, small_buckets());
      (*model)(input_of(group->rank())).backward();
      ADD_FAILURE() << "no error";
    } catch (const CollectiveError& error) {
      EXPECT_NE(group->rank(), 1);
      EXPECT_THAT(error.what(),
                  HasSubstr("rank 1 aborted the group: backward ended by an exception"));
    } catch (const std::domain_error&) {
      EXPECT_EQ(group->rank(), 1);
    }
    // The group is over, whatever is tried with it.
    if (!model) return;
    EXPECT_THROW((*model)(input_of(group->rank())).backward(), CollectiveError);
  });
}

TEST(Failures, InAGroupOfOneABackwardThatThrowsIsForgottenByTheNext) {
  run_ranks({1}, [](const GroupPtr& group) {
    bool fail = true;
    auto module = std::make_shared<Interrupted>([&] {
      if (fail) throw std::domain_error("no backward today");
    });
    DistributedDataParallel model(module, group);
    for (int i = 0; i < 3; ++i) {
      EXPECT_THROW(model(input_of(0)).backward(), std::domain_error);
    }
    fail = false;
    model.zero_grad();
    model(input_of(0)).backward();
    Interrupted reference([] {});
    reference.forward(input_of(0)).backward();
    EXPECT_TRUE(same_bytes(module->first->weight.grad(), reference.first->weight.grad()));
  });
}

TEST(Failures, ABackwardInsideAnotherIsRefused) {
  run_ranks({1}, [](const GroupPtr& group) {
    std::function<void()> nested;
    auto module = std::make_shared<Interrupted>([&] { nested(); });
    DistributedDataParallel model(module, group, small_buckets());
    const at::Tensor inner = loss_of(module->second(random_tensor({3, 5}, 1)));
    nested = [&] { inner.backward(); };
    EXPECT_THAT(error_of([&] { model(input_of(group->rank())).backward(); }),
                HasSubstr("before another one had ended"));
  });
}

TEST(Failures, AnUnexpectedSparseGradientNamesItsParameterOnWhicheverRankFindsItFirst) {
  run_ranks({2}, [](const GroupPtr& group) {
    EXPECT_THAT(error_of([&] {
                  torch::nn::Embedding embedding(5, 3);
                  DistributedDataParallel model(embedding, group);
                  embedding->options.sparse(true);
                  model(torch::ones({2}, torch::kLong)).sum().backward();
                }),
                HasSubstr("the gradient of weight (float32 [5, 3]) is float32 [5, 3] not strided"));
  });
}

TEST(Failures, ADestroyedModelLeavesItsModuleUsable) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto module = make_mlp(7);
    { DistributedDataParallel model(module, group); }
    loss_of(module->forward(input_of(group->rank()))).backward();
    const auto local = local_gradients(group->rank());
    EXPECT_TRUE(same_bytes(module->layers[0]->bias.grad(), local.at("layer0.bias")));
    DistributedDataParallel again(module, group);
    again.zero_grad();
    loss_of(again(input_of(group->rank()))).backward();
    expect_average_gradients(again.module(), 2);
  });
}

TEST(HigherOrder, CreateGraphStillAverages) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.gradient_as_bucket_view = group->size() == 2;
    DistributedDataParallel model(make_mlp(7), group, options);
    for (int step = 0; step < 2; ++step) {
      model.zero_grad();
      loss_of(model(input_of(group->rank(), step))).backward({}, {}, /*create_graph=*/true);
      expect_average_gradients(model.module(), 2, {step});
    }
  });
}

struct Normed : torch::nn::Module {
  Normed() {
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    fill(*this, 7);
  }
  at::Tensor forward(const at::Tensor& x) { return loss_of(norm(x)); }
  torch::nn::BatchNorm1d norm{nullptr};
};

TEST(Buffers, AreRankZerosAtTheStartOfATrainingForwardAfterASyncedStep) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto recording = std::make_shared<RecordingGroup>(group);
    DistributedDataParallel model(std::make_shared<Normed>(), recording);
    Normed reference;  // As rank 0 sees it.
    const auto forwards_of_zero = [&](int step) {
      const torch::NoGradGuard no_grad;
      reference.forward(input_of(0, step));
    };
    const auto broadcasts = [&] {
      int count = 0;
      for (const std::string& tag : recording->take()) count += tag == "buffers" ? 1 : 0;
      return count;
    };
    const int rank = group->rank();

    model(input_of(rank, 0)).backward();
    forwards_of_zero(0);
    EXPECT_EQ(broadcasts(), 0);  // Equal since construction.
    const at::Tensor mean = model.module().norm->running_mean;
    EXPECT_EQ(same_bytes(mean, reference.norm->running_mean), rank == 0);

    model.module().eval();
    model(input_of(rank, 5));
    EXPECT_EQ(broadcasts(), 0);
    model.module().train();
    const at::Tensor first =
        model(input_of(0, 1));  // The same input everywhere makes them visible.
    forwards_of_zero(1);
    EXPECT_EQ(broadcasts(), 1);
    EXPECT_TRUE(same_bytes(mean, reference.norm->running_mean));
    EXPECT_EQ(model.module().norm->num_batches_tracked.item<std::int64_t>(), 2);
    const at::Tensor second = model(input_of(0, 2));
    EXPECT_EQ(broadcasts(), 0);  // No step in between.
    {
      const auto guard = model.no_sync();
      first.backward();
    }
    model(input_of(0, 3));
    EXPECT_EQ(broadcasts(), 0);  // Nor a synchronised one.
    second.backward();
    model(input_of(0, 4));
    EXPECT_EQ(broadcasts(), 1);
  });
}

TEST(Buffers, StayLocalIfAskedToAndTravelOnRequest) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.broadcast_buffers = false;
    DistributedDataParallel model(std::make_shared<Normed>(), group, options);
    for (int step = 0; step < 3; ++step) model(input_of(group->rank(), step)).backward();
    Normed reference;
    for (int step = 0; step < 3; ++step) reference.forward(input_of(group->rank(), step));
    EXPECT_TRUE(same_bytes(model.module().norm->running_var, reference.norm->running_var));
    model.broadcast_buffers();
    Normed zero;
    for (int step = 0; step < 3; ++step) zero.forward(input_of(0, step));
    EXPECT_TRUE(same_bytes(model.module().norm->running_var, zero.norm->running_var));
  });
}

}  // namespace
}  // namespace ddp::test
