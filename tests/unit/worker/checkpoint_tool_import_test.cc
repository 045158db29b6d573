#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_codes.h"
#include "tests/support/checkpoint_tool.h"
#include "tests/support/python_torch.h"
#include "worker/checkpoint/directory_lock.h"
#include "worker/checkpoint/reader.h"

namespace ddp::checkpoint {
namespace {

using test::SampleTensor;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ToolImportTest : public test::CheckpointToolTest {
 protected:
  void write_file(const std::string& name, const std::vector<SampleTensor>& tensors) {
    ASSERT_TRUE(write_safetensors(posix_file_system(), file(name), test::views_of(tensors)));
  }
  const std::vector<SampleTensor> tensors_ = {{"conv.weight", TensorType::kF32, {2, 2}, 1},
                                              {"conv.bias", TensorType::kBF16, {2}, 2},
                                              {"count", TensorType::kI64, {}, 3},
                                              {"none", TensorType::kF8E4M3, {0, 3}, 4}};
};

TEST_F(ToolImportTest, AFileBecomesAValidCheckpoint) {
  write_file("f.safetensors", tensors_);
  ASSERT_EQ(
      run({"import", file("f.safetensors"), path("deep/er"), "--module", "net", "--step", "12"}),
      kExitSuccess)
      << err_;
  EXPECT_THAT(err_, IsEmpty());
  EXPECT_THAT(out_, HasSubstr("step-0000000012: 4 tensors of "));
  Directory directory(posix_file_system(), path("deep/er"));
  auto found = test::open_newest_valid(directory);
  ASSERT_TRUE(found && found->has_value());
  const Manifest& manifest = (*found)->manifest;
  EXPECT_EQ(manifest.step, 12);
  EXPECT_EQ(manifest.world_size, 1);
  ASSERT_EQ(manifest.tensors.size(), tensors_.size());
  Reader reader(posix_file_system(), (*found)->entry.path, manifest);
  for (const TensorRecord& record : manifest.tensors) {
    const auto sample =
        std::find_if(tensors_.begin(), tensors_.end(), [&record](const SampleTensor& tensor) {
          return "module/net/" + tensor.name == record.name;
        });
    ASSERT_NE(sample, tensors_.end()) << record.name;
    EXPECT_EQ(record.shape, sample->shape);
    auto read = reader.tensor(record);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(read->bytes.data()), read->bytes.size()),
              sample->bytes);
  }
  EXPECT_EQ(std::filesystem::read_symlink(path("deep/er/latest")), "step-0000000012");
}

TEST_F(ToolImportTest, WhatPyTorchWroteComesBackToPyTorch) {
  if (!test::has_torch()) GTEST_SKIP() << "needs python3-torch";
  const std::string script =
      std::string(std::getenv("DDP_SOURCE_DIR")) + "/tests/unit/worker/checkpoint_torch.py";
  const auto written = test::run({test::kPython, script, "state", file("state.safetensors")});
  ASSERT_EQ(written.status, 0) << written.err;
  ASSERT_EQ(run({"import", file("state.safetensors"), path(), "--module", "net"}), kExitSuccess)
      << err_;
  ASSERT_EQ(run({"export", path(), file("back.pt")}), kExitSuccess) << err_;
  const auto read = test::run({test::kPython, script, "read", file("back.pt")});
  ASSERT_EQ(read.status, 0) << read.err;
  // PyTorch's order is the module's, ours that of the names.
  const auto sorted = [](const std::string& text) {
    std::istringstream lines(text);
    std::vector<std::string> all;
    for (std::string line; std::getline(lines, line);) all.push_back(line);
    std::sort(all.begin(), all.end());
    return all;
  };
  EXPECT_EQ(sorted(read.out).size(), 7u);
  EXPECT_EQ(sorted(read.out), sorted(written.out));
}

TEST_F(ToolImportTest, AStepThatExistsIsNotReplaced) {
  publish(7, usual_tensors());
  write_file("f.safetensors", tensors_);
  const std::vector<std::string> seven = {
      "import", file("f.safetensors"), path(), "--module", "net", "--step", "7"};
  EXPECT_EQ(run(seven), kExitInvalidValue);
  EXPECT_THAT(err_, HasSubstr("step-0000000007 already exists; choose another --step"));
  EXPECT_EQ(run({"import", file("f.safetensors"), path(), "--module", "net", "--step", "6"}),
            kExitSuccess);
  EXPECT_THAT(err_, HasSubstr("step-0000000007 is newer, so programs will load that one"));
}

TEST_F(ToolImportTest, RefusesWhatMakesNoSense) {
  write_file("f.safetensors", tensors_);
  EXPECT_EQ(run({"import", file("f.safetensors"), path()}), kExitInvalidValue);
  EXPECT_THAT(err_, HasSubstr("--module is missing; give the name of the program's module"));
  EXPECT_EQ(run({"import", file("f.safetensors"), path(), "--module", "a/b"}), kExitInvalidValue);
  EXPECT_EQ(run({"import", file("f.safetensors"), path(), "--module", "net", "--step", "-1"}),
            kExitInvalidValue);
  EXPECT_EQ(run({"import", file("none"), path(), "--module", "net"}), kExitDataInvalid);
  EXPECT_FALSE(std::filesystem::exists(path()));
  folder_.write("pickle.pt", "PK\x03\x04 whatever PyTorch writes in a zip of its own");
  EXPECT_EQ(run({"import", file("pickle.pt"), path(), "--module", "net"}), kExitDataInvalid);
  EXPECT_THAT(err_, HasSubstr("is not a safetensors file"));
  const std::string checkpoint = publish(7, usual_tensors());
  EXPECT_EQ(run({"import", checkpoint, path(), "--module", "net"}), kExitInvalidValue);
  EXPECT_THAT(err_, HasSubstr("is a folder"));
}

TEST_F(ToolImportTest, IsRefusedWhileAJobHasTheFolder) {
  publish(7, usual_tensors());
  write_file("f.safetensors", tensors_);
  auto lock = DirectoryLock::acquire(path(), "job-7");
  ASSERT_TRUE(lock) << lock.error().message;
  EXPECT_EQ(run({"import", file("f.safetensors"), path(), "--module", "net", "--step", "9"}),
            kExitCheckpointUnwritable);
  EXPECT_THAT(err_, HasSubstr("job-7"));
  EXPECT_EQ(directory_.list()->size(), 1u);
}

}  // namespace
}  // namespace ddp::checkpoint
