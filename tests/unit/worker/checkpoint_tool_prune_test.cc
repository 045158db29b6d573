#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_codes.h"
#include "tests/support/checkpoint_tool.h"
#include "worker/checkpoint/directory_lock.h"

namespace ddp::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class ToolPruneTest : public test::CheckpointToolTest {
 protected:
  ToolPruneTest() {
    for (const int step : {10, 20, 30, 40, 50, 60}) publish(step, usual_tensors());
  }
  void damage(int step) {
    // Of the same size: only reading it finds out.
    const std::string name = "ckpt/" + entry_name(step, 0) + "/shard-00000.safetensors";
    std::string bytes = folder_.read(name);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    folder_.write(name, bytes);
  }
  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> there;
    const auto entries = directory_.list();
    for (const Entry& entry : *entries) there.push_back(entry.step);
    return there;
  }
};

TEST_F(ToolPruneTest, KeepsTheNewestAndThoseOfEveryManySteps) {
  EXPECT_EQ(run({"prune", path(), "--keep", "2", "--keep-every", "30"}), kExitSuccess) << err_;
  EXPECT_THAT(steps(), ElementsAre(60, 50, 30));
  EXPECT_THAT(out_, HasSubstr("step-0000000040: removed\n"));
  EXPECT_THAT(out_, HasSubstr("3 of 6 removed; the newest good one is "));
  EXPECT_EQ(run({"prune", path(), "--keep", "1"}), kExitSuccess);
  EXPECT_THAT(steps(), ElementsAre(60));
  EXPECT_EQ(run({"prune", path(), "--keep", "1"}), kExitSuccess);
  EXPECT_THAT(steps(), ElementsAre(60));
}

TEST_F(ToolPruneTest, ADryRunSaysTheSameAndDoesNothing) {
  EXPECT_EQ(run({"prune", path(), "--keep", "2", "--keep-every", "30", "--dry-run"}), kExitSuccess);
  EXPECT_THAT(out_, HasSubstr("step-0000000040: would be removed\n"));
  EXPECT_THAT(out_, HasSubstr("step-0000000010: would be removed\n"));
  EXPECT_THAT(out_, Not(HasSubstr("step-0000000030: ")));
  EXPECT_THAT(out_, HasSubstr("3 of 6 would be removed"));
  EXPECT_THAT(steps(), ElementsAre(60, 50, 40, 30, 20, 10));
}

TEST_F(ToolPruneTest, DamagedOnesDoNotCountAndTheLastGoodOneStays) {
  for (const int step : {60, 50, 40, 20}) damage(step);
  EXPECT_EQ(run({"prune", path(), "--keep", "1"}), kExitSuccess) << err_;
  EXPECT_THAT(err_, HasSubstr("step-0000000060 is damaged and does not count: "));
  EXPECT_THAT(steps(), ElementsAre(60, 50, 40, 30));
  EXPECT_THAT(out_, HasSubstr("step-0000000020: removed\n"));
  damage(30);
  EXPECT_EQ(run({"prune", path(), "--keep", "1"}), kExitDataInvalid);
  EXPECT_THAT(err_, HasSubstr("there is no valid checkpoint"));
  EXPECT_THAT(steps(), ElementsAre(60, 50, 40, 30));
}

TEST_F(ToolPruneTest, IsRefusedWhileAJobHasTheFolder) {
  auto lock = DirectoryLock::acquire(path(), "job-7");
  ASSERT_TRUE(lock) << lock.error().message;
  EXPECT_EQ(run({"prune", path(), "--keep", "1"}), kExitCheckpointUnwritable);
  EXPECT_THAT(err_, HasSubstr("job-7"));
  EXPECT_THAT(steps(), ElementsAre(60, 50, 40, 30, 20, 10));
  EXPECT_EQ(run({"prune", path(), "--keep", "1", "--dry-run"}), kExitSuccess);
  lock->release();
  EXPECT_EQ(run({"prune", path(), "--keep", "1"}), kExitSuccess) << err_;
}

TEST_F(ToolPruneTest, RefusesWhatMakesNoSense) {
  EXPECT_EQ(run({"prune", path()}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--keep N is needed"));
  EXPECT_EQ(run({"prune", path(), "--keep", "0"}), kExitInvalidValue);
  EXPECT_THAT(err_, HasSubstr("--keep is \"0\"; expected an integer of at least 1"));
  EXPECT_EQ(run({"prune", path(), "--keep", "2x"}), kExitInvalidValue);
  EXPECT_EQ(run({"prune", path(), "--keep", "2", "--keep-every=-1"}), kExitInvalidValue);
  EXPECT_EQ(run({"prune", path("step-0000000060"), "--keep", "1"}), kExitInvalidValue);
  EXPECT_THAT(err_, HasSubstr("is a checkpoint; expected a folder"));
  EXPECT_EQ(run({"prune", path("none"), "--keep", "1"}), kExitDataInvalid);
  EXPECT_EQ(run({"prune", path(), "--keep", "1", "--kep", "2"}), kExitUsage);
  EXPECT_THAT(steps(), ElementsAre(60, 50, 40, 30, 20, 10));
}

}  // namespace
}  // namespace ddp::checkpoint
