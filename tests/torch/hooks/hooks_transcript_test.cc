#include <mutex>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/torch/hooks/hook_training.h"
#include "tests/torch/python_transcript.h"
#include "worker/ddp/hooks/hook_text.h"

// PyTorch's hooks over gloo (hooks_transcript.py) and ours from the same weights and batches.
namespace ddp {
namespace {

using nlohmann::json;
using test::GroupPtr;
using test::HookTraining;

// How far apart parameters of order 1 may be: a few roundings of what each hook computes in.
double tolerance(const std::string& hook) {
  if (hook.starts_with("fp16")) return 1e-4;
  if (hook.starts_with("bf16")) return 1e-3;
  if (hook.find("quantize") != std::string::npos) return 1e-6;
  return 2e-5;
}

void compare(const json& run) {
  const auto hook = run.at("hook").get<std::string>();
  const auto order = run.at("order").get<std::vector<std::string>>();
  const json& ends = run.at("ends");
  std::mutex mutex;
  test::run_ranks({run.at("ranks").get<int>()}, [&](const GroupPtr& group) {
    HookTraining training(group, make_comm_hook_from_text(hook, group), order);
    if (const auto averager = make_model_averager_from_text(hook, group)) {
      training.after_step = [averager, &training] { averager->average_parameters(training.sgd); };
    }
    training.steps_until(run.at("steps").get<std::int64_t>());
    const auto rank = static_cast<std::size_t>(group->rank());
    const auto theirs = ends.at(ends.size() == 1 ? 0 : rank).get<std::vector<float>>();
    const std::lock_guard lock(mutex);
    const at::Tensor end = training.end();
    ASSERT_EQ(end.numel(), static_cast<std::int64_t>(theirs.size()));
    const double apart = test::distance(end, torch::tensor(theirs));
    EXPECT_LE(apart, tolerance(hook)) << hook << " on rank " << rank;
    const double moved = test::distance(end, HookTraining(group, nullptr, order).end());
    EXPECT_GT(moved, 0.05) << "nothing was learned that could differ";
  });
}

TEST(HooksTranscriptTest, EndsWherePyTorchEnds) {
  if (!test::has_torch()) GTEST_SKIP() << "no PyTorch for " << test::kPython;
  const json runs = json::parse(test::python_transcript("hooks/hooks_transcript.py"));
  EXPECT_EQ(runs.size(), 21U);
  for (const json& run : runs) {
    SCOPED_TRACE(run.at("hook").get<std::string>());
    compare(run);
  }
}

}  // namespace
}  // namespace ddp
