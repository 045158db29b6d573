#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/torch/checkpoint_fixture.h"
#include "tests/torch/checkpoint_model.h"
#include "worker/checkpoint/directory_lock.h"
#include "worker/ddp/state/checkpointer.h"

// The folder of the checkpoints: who may use it, and which of them stay.
namespace ddp {
namespace {

using test::Net;
using ::testing::ElementsAre;

using CheckpointFolderTest = test::CheckpointTest;

TEST_F(CheckpointFolderTest, TheFolderIsOneCheckpointersAtATime) {
  CheckpointOptions impatient = options();
  impatient.lock_wait = std::chrono::milliseconds(1);
  Net net;
  auto first = std::make_unique<Checkpointer>(options(), group_);
  first->add_module("net", net);
  ASSERT_TRUE(first->prepare());
  Checkpointer second(impatient, group_);
  second.add_module("net", net);
  const auto refused = second.prepare();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kTimeout);
  first.reset();
  EXPECT_TRUE(second.prepare());
}

// `ddp-checkpoint import` may come between two rounds, when nobody has the lock.
TEST_F(CheckpointFolderTest, AfterTheFirstRoundAPassingUserOfTheFolderIsWaitedFor) {
  std::filesystem::create_directory(path());
  auto lock = checkpoint::DirectoryLock::acquire(path(), "import-1");
  ASSERT_TRUE(lock);
  const auto refused = Checkpointer(options(), group_).prepare();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kExists);
  const std::map<std::string, std::string> second_round = {
      {"WORLD_SIZE", "1"}, {"RANK", "0"}, {"DDP_ROUND", "1"}};
  for (const auto& [name, value] : second_round) ::setenv(name.c_str(), value.c_str(), 1);
  const auto group = ProcessGroup::from_environment();
  for (const auto& [name, value] : second_round) ::unsetenv(name.c_str());
  std::thread user([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));  // sleep: the use takes a while.
    lock->release();
  });
  const auto prepared = Checkpointer(options(), group).prepare();
  user.join();
  EXPECT_TRUE(prepared) << prepared.error().message;
}

TEST_F(CheckpointFolderTest, StepsToKeepStay) {
  CheckpointOptions chosen = options();
  chosen.keep = 1;
  chosen.keep_every = 3;
  Net net;
  Checkpointer checkpointer(chosen, group_);
  checkpointer.add_module("net", net);
  ASSERT_TRUE(checkpointer.prepare());
  for (int step = 1; step <= 5; ++step) ASSERT_TRUE(checkpointer.save(step));
  ASSERT_TRUE(checkpointer.wait());
  EXPECT_THAT(test::names_in(path()), ElementsAre("latest", "step-0000000003", "step-0000000005"));
}

// The one that was loaded may be the only good one.
TEST_F(CheckpointFolderTest, ADamagedOneTakesNoPlaceOfThoseToKeep) {
  CheckpointOptions chosen = options();
  chosen.keep = 2;
  Net net;
  Checkpointer checkpointer(chosen, group_);
  checkpointer.add_module("net", net);
  ASSERT_TRUE(checkpointer.prepare());
  ASSERT_TRUE(checkpointer.save(100));
  ASSERT_TRUE(checkpointer.save(200));
  ASSERT_TRUE(checkpointer.wait());
  test::damage(path() + "/step-0000000200/shard-00000.safetensors");
  ASSERT_EQ(checkpointer.load_latest()->step, 100);
  ASSERT_TRUE(checkpointer.save(150));
  ASSERT_TRUE(checkpointer.wait());
  EXPECT_THAT(test::names_in(path()),
              ElementsAre("latest", "step-0000000100", "step-0000000150", "step-0000000200"));
  EXPECT_EQ(checkpointer.load_latest()->step, 150);
}

}  // namespace
}  // namespace ddp
