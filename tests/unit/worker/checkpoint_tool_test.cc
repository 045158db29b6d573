#include <filesystem>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_codes.h"
#include "common/base/release.h"
#include "tests/support/checkpoint_samples.h"
#include "tests/support/temp_dir.h"
#include "worker/checkpoint/tool/tool.h"

namespace ddp::checkpoint {
namespace {

using test::publish_sample;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ToolTest : public ::testing::Test {
 protected:
  ToolTest() {
    EXPECT_TRUE(directory_.prepare());
    for (const int step : {1, 2, 3}) {
      EXPECT_TRUE(publish_sample(posix_file_system(), directory_, step, 1));
    }
  }

  int run(const std::vector<std::string>& arguments) {
    std::ostringstream out;
    std::ostringstream err;
    const int status = run_tool(arguments, out, err);
    out_ = out.str();
    err_ = err.str();
    return status;
  }
  std::string path(const std::string& name = "") const { return folder_.path() / "ckpt" / name; }

  test::TempDir folder_;
  Directory directory_{posix_file_system(), folder_.path() / "ckpt"};
  std::string out_;
  std::string err_;
};

TEST_F(ToolTest, ListsVerifiesAndShowsGoodOnes) {
  EXPECT_EQ(run({"ls", path()}), kExitSuccess);
  EXPECT_LT(out_.find("step-0000000003 "), out_.find("step-0000000001 "));
  EXPECT_THAT(out_, HasSubstr("complete"));
  EXPECT_EQ(run({"verify", path()}), kExitSuccess);
  EXPECT_THAT(out_, HasSubstr("step-0000000002: good, 4 tensors"));
  EXPECT_EQ(run({"show", path("step-0000000002/")}), kExitSuccess);
  EXPECT_THAT(out_, HasSubstr("step: 2\n"));
  EXPECT_THAT(out_, HasSubstr("  a F32 [3, 5]\n"));
  EXPECT_THAT(out_, HasSubstr("  b I64 []  rank 0\n"));
  EXPECT_EQ(run({"show", path()}), kExitSuccess);
  EXPECT_THAT(out_, HasSubstr("step: 3\n"));
  EXPECT_THAT(err_, IsEmpty());
}

TEST_F(ToolTest, TakesTheLinkToTheNewest) {
  EXPECT_EQ(run({"verify", path("latest")}), kExitSuccess) << err_;
  EXPECT_THAT(out_, HasSubstr("latest: good, 4 tensors"));
  EXPECT_EQ(run({"show", path("latest/")}), kExitSuccess) << err_;
  EXPECT_THAT(out_, HasSubstr("step: 3\n"));
  // And a link to a folder of checkpoints.
  const std::string link = folder_.path() / "link";
  ASSERT_TRUE(posix_file_system().make_symlink("ckpt", link));
  EXPECT_EQ(run({"ls", link}), kExitSuccess) << err_;
  EXPECT_THAT(out_, HasSubstr("step-0000000001 "));
}

TEST_F(ToolTest, SaysWhichOneIsDamagedAndShowsTheOlderOne) {
  std::filesystem::resize_file(path("step-0000000003/shard-00000.safetensors"), 10);
  EXPECT_EQ(run({"ls", path()}), kExitDataInvalid);
  EXPECT_THAT(out_, HasSubstr("damaged: "));
  EXPECT_EQ(run({"verify", path()}), kExitDataInvalid);
  EXPECT_THAT(err_, HasSubstr("step-0000000003: damaged: "));
  EXPECT_THAT(out_, Not(HasSubstr("step-0000000003")));
  EXPECT_THAT(out_, HasSubstr("step-0000000001: good"));
  EXPECT_EQ(run({"show", path()}), kExitSuccess);
  EXPECT_THAT(out_, HasSubstr("step: 2\n"));
  EXPECT_THAT(err_, HasSubstr("step-0000000003 passed over: "));
  EXPECT_EQ(run({"show", path("step-0000000003")}), kExitDataInvalid);
}

TEST_F(ToolTest, WrongCommandLinesAndMissingPathsHaveTheirOwnStatus) {
  EXPECT_EQ(run({"--help"}), kExitSuccess);
  EXPECT_THAT(out_, HasSubstr("usage:"));
  EXPECT_EQ(run({"--version"}), kExitSuccess);
  EXPECT_EQ(out_, "ddp-checkpoint " + std::string(release()) + "\n");
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {}, {"ls"}, {"look", path()}, {"ls", path(), "more"}, {"ls", path(), "--more"}}) {
    EXPECT_EQ(run(arguments), kExitUsage);
    EXPECT_THAT(err_, HasSubstr("--help` explains"));
  }
  for (const std::string command : {"ls", "export", "write"}) {
    EXPECT_EQ(run({command, "x", "--help"}), kExitSuccess);
    EXPECT_THAT(out_, HasSubstr("usage: ddp-checkpoint " + command + " "));
  }
  EXPECT_EQ(run({"ls", path("none")}), kExitDataInvalid);
  EXPECT_THAT(err_, HasSubstr("none does not exist"));
  EXPECT_EQ(run({"verify", path("step-0000000009")}), kExitDataInvalid);
}

}  // namespace
}  // namespace ddp::checkpoint
