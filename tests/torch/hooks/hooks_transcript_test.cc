#include <fstream>
#include <mutex>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/torch/hooks/hook_training.h"
#include "worker/ddp/hooks/hook_text.h"

// PyTorch's hooks over gloo (hooks_transcript.py) and ours from the same weights and batches.
namespace ddp {
namespace {

using nlohmann::json;
using test::GroupPtr;
using test::HookTraining;

std::vector<json> transcripts() {
  const char* const source = std::getenv("DDP_SOURCE_DIR");
  std::ifstream file(std::string(source == nullptr ? "." : source) +
                     "/tests/torch/hooks/hooks_transcript.json");
  const json runs = json::parse(file, nullptr, false);
  return runs.is_array() ? runs.get<std::vector<json>>() : std::vector<json>();
}

// How far apart parameters of order 1 may be: a few roundings of what each hook computes in.
double tolerance(const std::string& hook) {
  if (hook.starts_with("fp16")) return 1e-4;
  if (hook.starts_with("bf16")) return 1e-3;
  if (hook.find("quantize") != std::string::npos) return 1e-6;
  return 2e-5;
}

TEST(HooksTranscriptFileTest, HasAllRuns) { EXPECT_EQ(transcripts().size(), 21U); }

class HooksTranscriptTest : public ::testing::TestWithParam<json> {};

TEST_P(HooksTranscriptTest, EndsWherePyTorchEnds) {
  const json& run = GetParam();
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

INSTANTIATE_TEST_SUITE_P(Runs, HooksTranscriptTest, ::testing::ValuesIn(transcripts()),
                         [](const auto& run) {
                           std::string name = std::to_string(run.index) + "_";
                           for (const char c : run.param.at("hook").template get<std::string>()) {
                             name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace ddp
