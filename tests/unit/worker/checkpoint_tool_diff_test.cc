#include <cstring>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_codes.h"
#include "tests/support/checkpoint_tool.h"

namespace ddp::checkpoint {
namespace {

using test::OwnedSample;
using test::SampleTensor;

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ToolDiffTest : public test::CheckpointToolTest {
 protected:
  // Changes one of the little-endian floats in a tensor.
  static void set_float(SampleTensor& tensor, std::size_t index, float value) {
    std::memcpy(tensor.bytes.data() + index * sizeof value, &value, sizeof value);
  }
};

TEST_F(ToolDiffTest, EqualOnesAreEqualWhateverTheirShardsAre) {
  const std::string a = publish(5, usual_tensors());
  std::vector<OwnedSample> tensors = usual_tensors();
  std::swap(tensors[0], tensors[1]);  // Each lies in the other shard now.
  const std::string b = publish(5, tensors);
  EXPECT_EQ(run({"diff", a, b}), kExitSuccess) << out_;
  EXPECT_EQ(out_, "equal: 6 tensors and all values\n");
  EXPECT_EQ(run({"diff", a, path()}), kExitSuccess);
  EXPECT_THAT(err_, IsEmpty());
}

TEST_F(ToolDiffTest, NamesTensorsElementsAndTheLargestDifference) {
  std::vector<OwnedSample> tensors = usual_tensors();
  for (std::size_t i = 0; i < 24; ++i) set_float(tensors[0].tensor, i, 1);
  const std::string a = publish(5, tensors);
  set_float(tensors[0].tensor, 7, 1.5f);
  set_float(tensors[0].tensor, 23, -1.0f);
  tensors[5].tensor.bytes[0] = static_cast<char>(tensors[5].tensor.bytes[0] ^ 1);
  const std::string b = publish(5, tensors);
  EXPECT_EQ(run({"diff", a, b}), 1);
  EXPECT_THAT(out_, HasSubstr("module/net/conv.weight: 2 of 24 elements differ, the largest "
                              "difference is 2 at [3, 2, 1]: 1 and -1\n"));
  EXPECT_THAT(out_, HasSubstr("rng/cpu of rank 1: 1 of 16 elements differ"));
  EXPECT_THAT(out_, HasSubstr("different: 2 lines above; 4 tensors are equal\n"));
}

TEST_F(ToolDiffTest, NamesWhatOnlyOneHasAndOtherTypesAndShapes) {
  const std::string a = publish(5, usual_tensors());
  std::vector<OwnedSample> tensors = usual_tensors();
  tensors[0].tensor = SampleTensor("module/net/conv.weight", TensorType::kF32, {4, 6});
  tensors[1].tensor = SampleTensor("module/net/conv.bias", TensorType::kBF16, {4});
  tensors[2].tensor.name = "module/net/bn.other";
  const std::string b = publish(5, tensors);
  EXPECT_EQ(run({"diff", a, b}), 1);
  EXPECT_THAT(out_, HasSubstr("module/net/conv.weight: F32 [4, 3, 2] and F32 [4, 6]\n"));
  EXPECT_THAT(out_, HasSubstr("module/net/conv.bias: F16 [4] and BF16 [4]\n"));
  EXPECT_THAT(out_, HasSubstr("module/net/bn.num_batches_tracked: only in " + a + " (I64 [])\n"));
  EXPECT_THAT(out_, HasSubstr("module/net/bn.other: only in " + b + " (I64 [])\n"));
}

TEST_F(ToolDiffTest, ComparesValuesByTheirPlaces) {
  const std::string a = publish(5, usual_tensors(), {{"position", 7}, {"rates", {0.1, 0.2}}});
  const std::string b = publish(6, usual_tensors(), {{"rates", {0.1, 0.3}}, {"new", nullptr}});
  EXPECT_EQ(run({"diff", a, b}), 1);
  EXPECT_THAT(out_, HasSubstr("step: 5 and 6\n"));
  EXPECT_THAT(out_, HasSubstr("state/values/position: only in " + a + "\n"));
  EXPECT_THAT(out_, HasSubstr("state/values/new: only in " + b + "\n"));
  EXPECT_THAT(out_, HasSubstr("state/values/rates/1: 0.2 and 0.3\n"));
  EXPECT_THAT(out_, Not(HasSubstr("rates/0")));
  EXPECT_THAT(out_, Not(HasSubstr("optimizers")));
  EXPECT_EQ(run({"diff", a, b, "--tensors-only"}), kExitSuccess);
  EXPECT_EQ(out_, "equal: 6 tensors\n");
}

TEST_F(ToolDiffTest, ValuesThatAreNotNumbersAreEqualToThemselves) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string a = publish(5, usual_tensors(), {{"loss", nan}});
  const std::string b = publish(5, usual_tensors(), {{"loss", nan}});
  EXPECT_EQ(run({"diff", a, b}), kExitSuccess) << out_;
  const std::string c = publish(5, usual_tensors(), {{"loss", 0.5}});
  EXPECT_EQ(run({"diff", a, c}), 1);
}

TEST_F(ToolDiffTest, APatternLeavesOutOtherTensors) {
  const std::string a = publish(5, usual_tensors(1));
  const std::string b = publish(5, usual_tensors(2));
  EXPECT_EQ(run({"diff", a, b}), 1);
  EXPECT_EQ(run({"diff", a, b, "--names=*.bias"}), kExitSuccess);
  EXPECT_EQ(out_, "equal: 1 tensors\n");
  EXPECT_EQ(run({"diff", a, b, "--names", "*conv.w?ight"}), 1);
  EXPECT_EQ(run({"diff", a, b, "--names", "conv*"}), kExitDataInvalid);
  EXPECT_THAT(err_, HasSubstr("has no tensor whose name matches --names \"conv*\""));
}

TEST_F(ToolDiffTest, AModuleIsComparedWithAFile) {
  const std::string a = publish(5, usual_tensors());
  ASSERT_EQ(run({"export", a, file("net.safetensors")}), kExitSuccess) << err_;
  EXPECT_EQ(run({"diff", "--module", "net", a, file("net.safetensors")}), kExitSuccess) << out_;
  EXPECT_EQ(out_, "equal: 3 tensors\n");
  EXPECT_EQ(run({"diff", a, file("net.safetensors")}), 1);
  EXPECT_EQ(run({"diff", "--module", "other", a, file("net.safetensors")}), kExitInvalidValue);
  EXPECT_THAT(err_, HasSubstr("no module \"other\"; it has: net"));
}

TEST_F(ToolDiffTest, ADamagedOneIsNoDifferenceButAnError) {
  const std::string a = publish(5, usual_tensors());
  const std::string b = publish(6, usual_tensors());
  folder_.write("ckpt/step-0000000006/rank-00001.safetensors", "x");
  EXPECT_EQ(run({"diff", a, b}), kExitDataInvalid);
  EXPECT_THAT(err_, HasSubstr("step-0000000006 passed over: "));
  EXPECT_THAT(err_, HasSubstr("there is no valid checkpoint at " + b));
  EXPECT_EQ(run({"diff", a, file("none")}), kExitDataInvalid);
  EXPECT_THAT(err_, HasSubstr("none does not exist"));
  folder_.write("text", "this is no tensor, but long enough to have a length");
  EXPECT_EQ(run({"diff", a, file("text")}), kExitDataInvalid);
  EXPECT_THAT(err_, HasSubstr("nor a safetensors file"));
}

}  // namespace
}  // namespace ddp::checkpoint
