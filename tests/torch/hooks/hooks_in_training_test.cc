#include <mutex>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/temp_dir.h"
#include "tests/torch/checkpoint_model.h"
#include "tests/torch/hooks/hook_training.h"
#include "tests/torch/python_transcript.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/averaging/reducer.h"
#include "worker/ddp/hooks/compress_wrapper.h"
#include "worker/ddp/hooks/default_hooks.h"
#include "worker/ddp/hooks/hook_text.h"
#include "worker/ddp/hooks/power_sgd_hook.h"
#include "worker/ddp/state/checkpointer.h"

// Hooks in DistributedDataParallel, with its buckets and their rebuilding.
namespace ddp {
namespace {

using nlohmann::json;
using test::GroupPtr;
using test::HookPtr;
using test::run_ranks;
using test::same_bits;

// Trains the model of hook_training.h by DistributedDataParallel.
struct DdpTraining {
  DdpTraining(const GroupPtr& group_in, const std::string& text,
              const DistributedDataParallelOptions& options)
      : group(group_in),
        hook(make_comm_hook_from_text(text, group)),
        averager(make_model_averager_from_text(text, group)),
        ddp(model, group, options) {
    ddp.register_comm_hook(hook);
  }
  void steps_until(std::int64_t end) {
    for (; steps < end; ++steps) {
      ddp.zero_grad();
      const at::Tensor images = test::formula({4, 8}, 1000 + steps * 17 + group->rank() * 5, 32);
      const at::Tensor targets = test::formula({4, 6}, 2000 + steps * 13 + group->rank() * 7, 64);
      torch::mse_loss(ddp(images), targets).backward();
      sgd.step();
      if (averager) averager->average_parameters(sgd);
    }
  }
  at::Tensor end() const {
    std::vector<at::Tensor> parts;
    for (const auto& parameter : model->parameters()) parts.push_back(parameter.detach().view(-1));
    return at::cat(parts);
  }

  GroupPtr group;
  torch::nn::Sequential model = test::make_model();
  torch::optim::SGD sgd{model->parameters(), torch::optim::SGDOptions(0.25).momentum(0.5)};
  HookPtr hook;
  std::shared_ptr<ModelAverager> averager;
  DistributedDataParallel<torch::nn::SequentialImpl> ddp;
  std::int64_t steps = 0;
};

DistributedDataParallelOptions small_buckets(bool as_view) {
  DistributedDataParallelOptions options;
  options.bucket_cap_mb_list = {300.0 / (1 << 20)};
  options.gradient_as_bucket_view = as_view;
  return options;
}

// The runs of hooks_transcript.py whose numbers do not depend on what shares a bucket.
TEST(HooksInTrainingTest, EndsWherePyTorchEndsWithSeveralBuckets) {
  if (!test::has_torch()) GTEST_SKIP() << "no PyTorch for " << test::kPython;
  int runs = 0;
  for (const json& run : json::parse(test::python_transcript("hooks/hooks_transcript.py"))) {
    const auto text = run.at("hook").get<std::string>();
    if (text.starts_with("batched") || text.starts_with("quantize")) continue;
    ++runs;
    std::mutex mutex;
    run_ranks({run.at("ranks").get<int>()}, [&](const GroupPtr& group) {
      DdpTraining training(group, text, small_buckets(runs % 2 == 0));
      training.steps_until(run.at("steps").get<std::int64_t>());
      EXPECT_GT(training.ddp.reducer().buckets().size(), 1U);
      const json& ends = run.at("ends");
      const auto rank = static_cast<std::size_t>(group->rank());
      const auto theirs = ends.at(ends.size() == 1 ? 0 : rank).get<std::vector<float>>();
      const std::lock_guard lock(mutex);
      EXPECT_LE(test::distance(training.end(), torch::tensor(theirs)), text == "bf16"   ? 1e-3
                                                                       : text == "fp16" ? 1e-4
                                                                                        : 2e-5)
          << text;
    });
  }
  EXPECT_GE(runs, 15);
}

// Buckets are not those of the run before until they have been rebuilt.
TEST(HooksInTrainingTest, ResumesExactly) {
  for (const char* text :
       {"allreduce", "fp16", "powersgd:rank=2,start_iter=2", "powersgd:rank=1,start_iter=7",
        "powersgd:rank=2,start_iter=2,warm_start=false", "fp16+powersgd:start_iter=2",
        "batched_powersgd:rank=2,start_iter=2", "quantize_per_channel"}) {
    test::TempDir folder;
    run_ranks({2, 1}, [&](const GroupPtr& group) {
      const auto options = small_buckets(false);
      const auto checkpointer_of = [&](DdpTraining& training) {
        auto made = std::make_unique<Checkpointer>(
            CheckpointOptions{(folder.path() / "c").string(), 3}, group);
        made->add_module("model", *training.model);
        made->add_optimizer("sgd", training.sgd, *training.model);
        made->add_comm_hook("hook", *training.hook);
        return made;
      };
      DdpTraining first(group, text, options);
      auto saver = checkpointer_of(first);
      ASSERT_TRUE(saver->prepare());
      first.steps_until(5);
      ASSERT_TRUE(saver->save(5));
      auto resumed_options = options;
      resumed_options.bucket_layout = first.ddp.bucket_layout();
      first.steps_until(10);
      ASSERT_TRUE(saver->wait());
      const bool by_parameter =
          !std::string(text).starts_with("batched") && !std::string(text).starts_with("quantize");
      DdpTraining second(group, text, by_parameter ? options : resumed_options);
      const auto loaded = checkpointer_of(second)->load_latest();
      ASSERT_TRUE(loaded) << loaded.error().message;
      second.steps = 5;
      second.steps_until(10);
      EXPECT_TRUE(same_bits(first.end(), second.end())) << text << ", rank " << group->rank();
    });
  }
}

// As in PyTorch: state and function.
TEST(HooksInTrainingTest, StateAndFunctionAreRegisteredAsInPyTorch) {
  run_ranks({2}, [](const GroupPtr& group) {
    const auto state = std::make_shared<PowerSGDState>(
        group, PowerSGDOptions{.matrix_approximation_rank = 2, .start_powerSGD_iter = 2});
    torch::nn::Sequential model = test::make_model();
    DistributedDataParallel<torch::nn::SequentialImpl> ddp(model, group);
    ddp.register_comm_hook(state, fp16_compress_wrapper(powerSGD_hook));
    torch::mse_loss(ddp(test::formula({4, 8}, 1, 32)), torch::zeros({4, 6})).backward();
    EXPECT_EQ(state->iter(), 1);
    torch::nn::Sequential other = test::make_model();
    DistributedDataParallel<torch::nn::SequentialImpl> plain(other, group);
    plain.register_comm_hook(group, allreduce_hook);
    torch::mse_loss(plain(test::formula({4, 8}, 1, 32)), torch::zeros({4, 6})).backward();
    EXPECT_TRUE(other->parameters().front().grad().defined());
  });
}

}  // namespace
}  // namespace ddp
