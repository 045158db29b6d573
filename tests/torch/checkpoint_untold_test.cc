#include <atomic>
#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include "common/base/clock.h"
#include "tests/support/plain_disk.h"
#include "tests/torch/checkpoint_fixture.h"
#include "tests/torch/checkpoint_model.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/state/checkpoint_writer_impl.h"

// Saves whose writer fails without a word to the other ranks: nobody waits for it for long.
namespace ddp {
namespace {

using test::GroupPtr;
using test::Net;
using test::run_ranks;
using ::testing::HasSubstr;

using CheckpointUntoldTest = test::CheckpointTest;

// While it exists, no thread of this process can start: there is no address space for its stack.
class NoThreads {
 public:
  NoThreads() {
    ::pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    ::pthread_attr_init(&huge);
    EXPECT_EQ(::pthread_attr_setstacksize(&huge, std::size_t{1} << 50), 0);
    EXPECT_EQ(::pthread_setattr_default_np(&huge), 0);
    ::pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    EXPECT_EQ(::pthread_setattr_default_np(&before_), 0);
    ::pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

// Nothing in it can be changed while it is broken.
class BrokenDisk final : public test::PlainDisk {
 public:
  std::atomic<bool> broken = false;

  Result<std::unique_ptr<checkpoint::WritableFile>> create_file(const std::string& path) override {
    if (broken) return fault(path);
    return PlainDisk::create_file(path);
  }
  Result<void> make_directory(const std::string& path) override {
    return broken ? fault(path) : PlainDisk::make_directory(path);
  }
  Result<void> rename(const std::string& from, const std::string& to) override {
    return broken ? fault(from) : PlainDisk::rename(from, to);
  }
  Result<void> remove_file(const std::string& path) override {
    return broken ? fault(path) : PlainDisk::remove_file(path);
  }
  Result<void> remove_directory(const std::string& path) override {
    return broken ? fault(path) : PlainDisk::remove_directory(path);
  }

 private:
  static Error fault(const std::string& path) {
    return make_error(Errc::kIo, "cannot change {}: Input/output error", path);
  }
};

TEST_F(CheckpointUntoldTest, ASaveWhoseThreadCannotStartFailsAndTheNextOneIsMade) {
  Net net;
  Checkpointer checkpointer(options(), group_);
  checkpointer.add_module("net", net);
  ASSERT_TRUE(checkpointer.prepare());
  {
    const NoThreads none;
    ASSERT_TRUE(checkpointer.save(1));
  }
  const auto next = checkpointer.save(2);
  ASSERT_FALSE(next);
  EXPECT_THAT(
      next.error().message,
      HasSubstr("the checkpoint of step 1 was not finished: no thread could start to write it"));
  const auto last = checkpointer.wait();
  ASSERT_TRUE(last) << last.error().message;
  EXPECT_EQ(last->step, 2);
}

// Rank 0's writer would wait ten minutes for the share.
TEST_F(CheckpointUntoldTest, RankZeroDoesNotWaitForAShareThatFailedInSilence) {
  const TimePoint begun = Clock::now();
  run_ranks({3}, [&](const GroupPtr& group) {
    BrokenDisk disk;
    Net net;
    const auto writer = std::make_shared<CheckpointWriter>();
    Checkpointer checkpointer(options(), group, disk, writer);
    checkpointer.add_module("net", net);
    ASSERT_TRUE(checkpointer.prepare());
    disk.broken = group->rank() == 1;
    ASSERT_TRUE(checkpointer.save(1));
    if (group->rank() == 1) writer->impl().wait_for(std::chrono::seconds(30));
    disk.broken = false;
    const auto failed = checkpointer.wait();
    ASSERT_FALSE(failed);
    EXPECT_THAT(failed.error().message, HasSubstr("rank 1: cannot change "));
    ASSERT_TRUE(checkpointer.save(2));
    const auto last = checkpointer.wait();
    ASSERT_TRUE(last) << last.error().message;
    EXPECT_EQ(last->step, 2);
    group->barrier()->wait();
    EXPECT_THAT(test::names_in(path()), testing::ElementsAre("latest", "step-0000000002"));
  });
  EXPECT_LT(Clock::now() - begun, std::chrono::minutes(4));
}

}  // namespace
}  // namespace ddp
