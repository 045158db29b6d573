#include <cstdint>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/temp_dir.h"
#include "tests/torch/slow_disk.h"
#include "worker/ddp/state/checkpointer.h"
#include "worker/ddp/state/elastic_commit.h"
#include "worker/runtime/process_group.h"

// State of models on CUDA devices: what is kept is the state of that moment, however long the
// device still works when it is asked for. (device_test has the rest, on devices that every machine
// has.)
namespace ddp {
namespace {

// So many that a copy takes a while: 64 MiB of each.
constexpr std::int64_t kElements = std::int64_t{16} << 20;

struct Large : torch::nn::Module {
  explicit Large(const at::Device& device) {
    const auto options = at::TensorOptions(device);
    one = register_parameter("one", torch::zeros({kElements}, options));
    other = register_parameter("other", torch::zeros({kElements / 4096, 4096}, options));
    turned = register_buffer("turned", torch::zeros({5, 7}, options).t());
  }
  // Behind work that takes the device some time.
  void set(float value) {
    const torch::NoGradGuard no_grad;
    for (int i = 0; i < 200; ++i) one.add_(1);
    for (at::Tensor tensor : {one, other, turned}) tensor.fill_(value);
  }
  bool is(float value) const {
    return one.eq(value).all().item<bool>() && other.eq(value).all().item<bool>() &&
           turned.eq(value).all().item<bool>();
  }
  at::Tensor one, other, turned;
};

class CudaStateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "LibTorch sees no CUDA device";
  }
};

TEST_F(CudaStateTest, ACheckpointHasTheValuesOfTheMomentOfItsSave) {
  const test::TempDir folder;
  test::SlowDisk disk;
  const auto group = ProcessGroup::from_environment();
  CheckpointOptions options;
  options.directory = (folder.path() / "saved").string();
  Large module(at::kCUDA);
  Checkpointer checkpointer(options, group, disk);
  checkpointer.add_module("model", module);
  ASSERT_TRUE(checkpointer.prepare());
  for (int step = 1; step < 4; ++step) {  // The first one makes the memory.
    module.set(static_cast<float>(step));
    disk.stop();
    const auto saved = checkpointer.save(step, 0);
    ASSERT_TRUE(saved) << saved.error().message;
    EXPECT_EQ(saved->state, SaveReport::State::kWriting);
    EXPECT_EQ(saved->note, "");
    module.set(-1);
    disk.go();
    const auto durable = checkpointer.wait();
    ASSERT_TRUE(durable) << durable.error().message;
    Large again(at::kCUDA);
    Checkpointer loader(options, group);
    loader.add_module("model", again);
    const auto report = loader.load_latest();
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->step, step);
    EXPECT_TRUE(again.is(static_cast<float>(step))) << step;
  }
}

TEST_F(CudaStateTest, ACommitHasTheValuesOfItsMomentInPinnedMemory) {
  Large module(at::kCUDA);
  RegisteredState state;
  state.add_module("model", module);
  elastic::CommittedState commit;
  commit.world_size = 1;
  for (int step = 1; step < 4; ++step) {
    module.set(static_cast<float>(step));
    const auto captured = elastic::capture(state, 0, commit);
    ASSERT_TRUE(captured) << captured.error().message;
    EXPECT_EQ(commit.made_buffers, step == 1);
    module.set(-1);
    for (const at::Tensor& tensor : commit.tensors) {
      EXPECT_TRUE(tensor.is_pinned()) << "copies to the host wait for one another";
      EXPECT_TRUE(tensor.eq(step).all().item<bool>()) << step;
    }
    ASSERT_TRUE(elastic::put_back(commit, state, 0, 1));
    EXPECT_TRUE(module.is(static_cast<float>(step)));
  }
}

// From which dropout draws.
at::Tensor draw() { return torch::rand({8}, torch::kCUDA).cpu(); }

TEST_F(CudaStateTest, ACheckpointHasTheDevicesGenerator) {
  const test::TempDir folder;
  const auto group = ProcessGroup::from_environment();
  CheckpointOptions options;
  options.directory = (folder.path() / "saved").string();
  torch::nn::Linear module(4, 4);
  module->to(at::kCUDA);
  Checkpointer checkpointer(options, group);
  checkpointer.add_module("model", *module);
  checkpointer.add_rng();
  ASSERT_TRUE(checkpointer.prepare());
  ASSERT_TRUE(checkpointer.save(1, 0));
  const at::Tensor next = draw();
  ASSERT_TRUE(checkpointer.wait());
  ASSERT_TRUE(checkpointer.load_latest());
  EXPECT_TRUE(torch::equal(draw(), next));
}

TEST_F(CudaStateTest, ACommitHasTheDevicesGenerator) {
  torch::nn::Linear module(4, 4);
  module->to(at::kCUDA);
  RegisteredState state;
  state.add_module("model", *module);
  state.add_rng("cpu");
  elastic::CommittedState commit;
  commit.world_size = 1;
  ASSERT_TRUE(elastic::capture(state, 0, commit));
  const at::Tensor next = draw();
  ASSERT_TRUE(elastic::put_back(commit, state, 0, 1));
  EXPECT_TRUE(torch::equal(draw(), next));
}

}  // namespace
}  // namespace ddp
