// The options of DistributedDataParallel against PyTorch's own: options_transcript.py trains the
// same models on the same batches over gloo.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/torch/python_transcript.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/averaging/reducer.h"

namespace ddp::test {
namespace {

constexpr std::int64_t kSteps = 6;

// What a group promises differs from what gloo does by the order of additions. Such a difference
// was measured as 5e-8 to 6e-8 after 20 steps; the transcript adds half a unit of
// its seventh digit, and learning at a rate of 0.25 enlarges both.
constexpr double kApart = 5e-7;

at::Tensor pattern(at::IntArrayRef shape, std::int64_t salt, float scale) {
  const at::Tensor count = torch::arange(c10::multiply_integers(shape));
  return (((count * 37 + salt * 11) % 101 - 50).to(at::kFloat) / scale).view(shape);
}

struct OptionsNet : torch::nn::Module {
  explicit OptionsNet(std::string run_in, Rank rank = 0) : run(std::move(run_in)) {
    using torch::nn::Linear;
    if (run == "sparse") {
      table = register_module(
          "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 8).sparse(true)));
    } else if (run == "sparse_bag") {
      bag = register_module(
          "table", torch::nn::EmbeddingBag(
                       torch::nn::EmbeddingBagOptions(10, 8).mode(torch::kMean).sparse(true)));
    }
    first = register_module("first", Linear(8, 12));
    if (run.starts_with("norm")) norm = register_module("norm", torch::nn::BatchNorm1d(12));
    left = register_module("left", Linear(12, 12));
    right = register_module("right", Linear(12, 12));
    last = register_module("last", Linear(12, 6));
    const torch::NoGradGuard no_grad;
    std::int64_t salt = 0;
    for (const auto& parameter : parameters()) {
      parameter.copy_(pattern(parameter.sizes(), salt++, 128));
    }
    // Where ranks begin differently.
    if (run == "norm_own_buffers" || run.ends_with("sync_off")) norm->running_mean.fill_(rank + 1);
    if (run == "no_init_sync") first->bias.add_(rank / 8.0);
    if (run == "frozen") {
      for (const auto& parameter : left->parameters()) parameter.requires_grad_(false);
    }
  }

  at::Tensor forward(at::Tensor images, const at::Tensor& words, std::int64_t route) {
    if (bag) images = images + bag(words);
    if (table) images = images + table(words).mean(1);
    at::Tensor hidden = torch::tanh(first(images));
    if (norm) hidden = norm(hidden);
    if (run == "static_graph") {
      hidden = torch::tanh(left(torch::tanh(left(hidden))));
    } else if (run == "skip_unused") {
      hidden = torch::tanh(right(hidden));
    } else if (run.starts_with("find_unused")) {
      if (route == 0) {
        hidden = torch::tanh(left(hidden));
      } else if (route == 1) {
        hidden = torch::tanh(right(hidden));
      }
    } else {
      hidden = torch::tanh(right(torch::tanh(left(hidden))));
    }
    return last(hidden);
  }

  // Parameters, then buffers of floating point.
  at::Tensor end() const {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& tensor : parameters()) parts.push_back(tensor.detach().reshape(-1));
    for (const at::Tensor& tensor : buffers()) {
      if (tensor.is_floating_point()) parts.push_back(tensor.reshape(-1));
    }
    return at::cat(parts);
  }

  std::string run;
  torch::nn::Embedding table{nullptr};
  torch::nn::EmbeddingBag bag{nullptr};
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear left{nullptr};
  torch::nn::Linear right{nullptr};
  torch::nn::Linear last{nullptr};
};

using Model = DistributedDataParallel<OptionsNet>;

at::Tensor loss_at(Model& model, std::int64_t step, Rank rank) {
  const at::Tensor images = pattern({4, 8}, 1000 + step * 17 + rank * 5, 32);
  const at::Tensor targets = pattern({4, 6}, 2000 + step * 13 + rank * 7, 64);
  const at::Tensor words = ((torch::arange(12) * 7 + step * 3 + rank * 5) % 10).view({4, 3});
  return torch::mse_loss(model(images, words, (step * 2 + rank) % 3), targets);
}

void run_backward(const std::string& run, Model& model, std::int64_t step, Rank rank) {
  if (run == "no_sync") {
    {
      const auto guard = model.no_sync();
      for (int part = 0; part < 2; ++part) loss_at(model, 3 * step + part, rank).backward();
    }
    loss_at(model, 3 * step + 2, rank).backward();
  } else if (run == "two_forwards") {
    (loss_at(model, 2 * step, rank) + loss_at(model, 2 * step + 1, rank)).backward();
  } else {
    loss_at(model, step, rank).backward();
  }
}

DistributedDataParallelOptions options_of(const std::string& run) {
  const auto has = [&](const char* part) { return run.find(part) != std::string::npos; };
  DistributedDataParallelOptions options;
  if (run == "small_buckets") options.bucket_cap_mb = 300.0 / (1 << 20);
  if (run == "caps_list") options.bucket_cap_mb_list = {300.0 / (1 << 20), 700.0 / (1 << 20)};
  options.find_unused_parameters = has("unused");
  options.skip_all_reduce_unused_params = run == "skip_unused";
  options.static_graph = run == "static_graph";
  options.gradient_as_bucket_view = has("views");
  options.batched_grad_copy = has("batched");
  options.broadcast_buffers = run != "norm_no_broadcast" && run != "norm_own_buffers";
  if (has("sync_off")) options.forward_sync_buffers = false;
  options.init_sync = run != "no_init_sync";
  if (run == "delayed") {
    options.delay_all_reduce_named_params = {"last.weight", "last.bias"};
    options.param_to_hook_all_reduce = "first.weight";
  }
  return options;
}

struct End {
  at::Tensor state;
  std::vector<float> bucket_bytes;
};

End train(const std::string& run, const GroupPtr& group) {
  auto module = std::make_shared<OptionsNet>(run, group->rank());
  Model model(module, group, options_of(run));
  torch::optim::SGD sgd(module->parameters(), torch::optim::SGDOptions(0.25).momentum(
                                                  run.starts_with("sparse") ? 0 : 0.5));
  const bool joins = run.find("join") != std::string::npos;
  const auto steps = [&] {
    for (std::int64_t step = 0; step < kSteps + (joins ? group->rank() : 0); ++step) {
      model.zero_grad(/*set_to_none=*/run != "views_zeroed");
      run_backward(run, model, step, group->rank());
      sgd.step();
    }
  };
  if (joins) {
    JoinOptions join;
    join.divide_by_initial_world_size = run == "join";
    model.with_join(steps, join);
  } else {
    steps();
  }
  End end{module->end(), {}};
  for (const buckets::BucketLayout& bucket : model.reducer().buckets()) {
    end.bucket_bytes.push_back(static_cast<float>(bucket.bytes));
  }
  return end;
}

using Ends = std::map<int, std::vector<float>>;  // By rank.

// How far ours ends from PyTorch's, and how far it came. `buckets`: where PyTorch said them.
void compare(const std::string& run, int world, const Ends& ends,
             const std::vector<float>* buckets) {
  std::mutex mutex;
  double apart = 0;
  double moved = 0;
  run_ranks({world}, [&](const GroupPtr& group) {
    const auto [end, bucket_bytes] = train(run, group);
    const auto own = ends.find(group->rank());
    const at::Tensor theirs = torch::tensor(own == ends.end() ? ends.at(0) : own->second);
    const at::Tensor begin = OptionsNet(run, group->rank()).end();
    const std::lock_guard lock(mutex);
    if (buckets != nullptr) {
      EXPECT_EQ(bucket_bytes, *buckets);
    }
    ASSERT_EQ(end.numel(), theirs.numel());
    apart = std::max(apart, (end - theirs).abs().max().item<double>());
    moved = std::max(moved, (end - begin).abs().max().item<double>());
  });
  std::printf("%s on %d ranks: %.1e from PyTorch, %.2f from the begin\n", run.c_str(), world, apart,
              moved);
  EXPECT_LE(apart, kApart);
  EXPECT_GT(moved, 0.05) << "nothing was learned that could differ";
}

TEST(OptionsTranscript, EndsWherePyTorchEnds) {
  if (!has_torch()) GTEST_SKIP() << "no PyTorch for " << kPython;
  const Transcript transcript = transcript_of("options_transcript.py");
  EXPECT_GE(transcript.size(), 23U);
  int with_buckets = 0;
  for (const auto& [key, ends] : transcript) {
    if (key.second.ends_with("/buckets")) continue;
    SCOPED_TRACE(key.second + " on " + std::to_string(key.first) + " ranks");
    const auto buckets = transcript.find({key.first, key.second + "/buckets"});
    with_buckets += buckets != transcript.end();
    compare(key.second, key.first, ends,
            buckets == transcript.end() ? nullptr : &buckets->second.at(0));
  }
  EXPECT_GE(with_buckets, 2);
}

}  // namespace
}  // namespace ddp::test
