#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_codes.h"
#include "tests/support/checkpoint_tool.h"
#include "tests/support/python_torch.h"

namespace ddp::checkpoint {
namespace {

using test::line_of;
using test::OwnedSample;
using test::SampleTensor;
using ::testing::HasSubstr;

class ToolExportTest : public test::CheckpointToolTest {
 protected:
  // What PyTorch's torch.load(weights_only=True) finds in two files.
  std::string torch_lines(const std::string& first, const std::string& second) {
    const std::string script =
        std::string(std::getenv("DDP_SOURCE_DIR")) + "/tests/unit/worker/checkpoint_torch.py";
    const auto ended = test::run({test::kPython, script, "read", file(first), file(second)});
    EXPECT_EQ(ended.status, 0) << ended.err;
    return ended.out;
  }
};

// Every type that both sides have, scalars, empty ones, and names that need care.
std::vector<SampleTensor> many_tensors() {
  using enum TensorType;
  std::vector<SampleTensor> tensors;
  for (const TensorType type : {kBool, kU8, kI8, kI16, kF16, kBF16, kI32, kF32, kF64, kI64}) {
    const std::string name(tensor_type_name(type));
    tensors.emplace_back("t." + name, type, std::vector<std::int64_t>{2, 3, 1});
    tensors.emplace_back("t." + name + ".scalar", type, std::vector<std::int64_t>{});
    tensors.emplace_back("t." + name + ".empty", type, std::vector<std::int64_t>{3, 0, 70000});
    if (type != kBool) continue;
    for (std::size_t i = tensors.size() - 3; i < tensors.size(); ++i) {
      for (char& byte : tensors[i].bytes) byte = static_cast<char>(byte & 1);  // As PyTorch wants.
    }
  }
  tensors.emplace_back("wide", kU8, std::vector<std::int64_t>{300, 2});
  tensors.emplace_back("\xc3\xa4\xe2\x82\xac\"'", kF32, std::vector<std::int64_t>{1});
  std::sort(tensors.begin(), tensors.end(),
            [](const SampleTensor& a, const SampleTensor& b) { return a.name < b.name; });
  return tensors;
}

TEST_F(ToolExportTest, PyTorchReadsEveryTypeAsAPlainDict) {
  if (!test::has_torch()) GTEST_SKIP() << "needs python3-torch";
  const std::vector<SampleTensor> tensors = many_tensors();
  std::vector<OwnedSample> all = usual_tensors();
  std::string expected;
  for (const SampleTensor& tensor : tensors) {
    expected += line_of(tensor);
    all.push_back({tensor});
    all.back().tensor.name = "module/types/" + tensor.name;
  }
  publish(5, all);
  ASSERT_EQ(run({"export", path(), file("all.pt"), "--module", "types"}), kExitSuccess) << err_;
  EXPECT_THAT(out_, HasSubstr("all.pt: 32 tensors, "));
  const auto wide = std::find_if(tensors.begin(), tensors.end(),
                                 [](const SampleTensor& tensor) { return tensor.name == "wide"; });
  // A dict with a single entry is another opcode in Python's pickler.
  OwnedSample only{*wide};
  only.tensor.name = "module/types/wide";
  publish(6, {only});
  ASSERT_EQ(run({"export", path(), file("one.pth"), "--module=types"}), kExitSuccess) << err_;
  EXPECT_EQ(torch_lines("all.pt", "one.pth"), expected + line_of(*wide));
}

TEST_F(ToolExportTest, SafetensorsHasTheModulesOwnNames) {
  publish(5, usual_tensors());
  ASSERT_EQ(run({"export", path(), file("net.safetensors")}), kExitSuccess) << err_;
  auto opened = posix_file_system().open_file(file("net.safetensors"));
  auto header = read_safetensors_header(**opened, "net");
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->metadata.at("format"), "pt");  // Hugging Face's loaders insist on it.
  EXPECT_EQ(header->tensors.size(), 3u);
  const std::string whole = folder_.read("net.safetensors");
  for (const OwnedSample& item : usual_tensors()) {
    if (!item.tensor.name.starts_with("module/net/")) continue;
    const TensorEntry* entry = header->find(item.tensor.name.substr(11));
    ASSERT_NE(entry, nullptr) << item.tensor.name;
    EXPECT_EQ(whole.substr(entry->begin, entry->end - entry->begin), item.tensor.bytes);
  }
}

TEST_F(ToolExportTest, RefusesWhatPyTorchCannotHoldAndLeavesNothingBehind) {
  std::vector<OwnedSample> tensors = usual_tensors();
  tensors.push_back({{"module/net/odd", TensorType::kU32, {2}}});
  publish(5, tensors);
  EXPECT_EQ(run({"export", path(), file("net.pt")}), kExitInvalidValue);
  EXPECT_THAT(err_, HasSubstr("tensor \"odd\" is U32, for which PyTorch's format has no storage"));
  EXPECT_EQ(run({"export", path(), file("net.safetensors")}), kExitSuccess);
  EXPECT_EQ(run({"export", path(), file("none/net.safetensors")}), kExitCheckpointUnwritable);
  EXPECT_THAT(err_, HasSubstr("No such file or directory"));
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    (void)entry;
    ++files;
  }
  EXPECT_EQ(files, 2u);  // One and the folder of checkpoints.
}

TEST_F(ToolExportTest, AFileThatExistsIsNotReplaced) {
  publish(5, usual_tensors());
  folder_.write("net.pt", "mine");
  EXPECT_EQ(run({"export", path(), file("net.pt")}), kExitCheckpointUnwritable);
  EXPECT_THAT(err_, HasSubstr("net.pt already exists"));
  EXPECT_EQ(folder_.read("net.pt"), "mine");
  EXPECT_EQ(run({"export", path(), file("first.pt")}), kExitSuccess) << err_;
  EXPECT_EQ(run({"export", path(), file("again.pt")}), kExitSuccess);
  EXPECT_EQ(folder_.read("again.pt"), folder_.read("first.pt"));  // The same state, the same bytes.
}

TEST_F(ToolExportTest, TheModuleAndTheFormatMustBeClear) {
  std::vector<OwnedSample> tensors = usual_tensors();
  tensors.push_back({{"module/other/w", TensorType::kF32, {2}}});
  publish(5, tensors);
  EXPECT_EQ(run({"export", path(), file("net.pt")}), kExitInvalidValue);
  EXPECT_THAT(err_, HasSubstr("has 2 modules (net, other); choose one with --module"));
  EXPECT_EQ(run({"export", path(), file("net.pt"), "--module", "x"}), kExitInvalidValue);
  EXPECT_THAT(err_, HasSubstr("has no module \"x\"; it has: net, other"));
  EXPECT_EQ(run({"export", path(), file("net"), "--module", "net"}), kExitInvalidValue);
  EXPECT_THAT(err_, HasSubstr("give --format"));
  EXPECT_EQ(run({"export", path(), file("net"), "--module", "net", "--format", "zip"}),
            kExitInvalidValue);
  EXPECT_EQ(run({"export", path(), file("net"), "--module", "other", "--format", "pytorch"}),
            kExitSuccess);
  EXPECT_EQ(run({"export", path("none"), file("x.pt")}), kExitDataInvalid);
}

}  // namespace
}  // namespace ddp::checkpoint
