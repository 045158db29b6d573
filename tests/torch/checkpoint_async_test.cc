#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/process.h"
#include "tests/support/temp_dir.h"
#include "tests/torch/checkpoint_fixture.h"
#include "tests/torch/checkpoint_model.h"
#include "tests/torch/rank_threads.h"
#include "tests/torch/slow_disk.h"
#include "worker/ddp/state/checkpoint_writer_impl.h"

// Saves in the background: what training waits for, what the next save does, and how the end of a
// save is reported.
namespace ddp {
namespace {

using test::GroupPtr;
using test::Net;
using test::run_ranks;
using test::SlowDisk;
using test::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using State = SaveReport::State;

// A save's first file is made only once the next round proves that it can write, and the proof goes
// on only once the save has ended.
class SaveEndsDuringTheProof final : public test::PlainDisk {
 public:
  std::shared_ptr<CheckpointWriter> writer = std::make_shared<CheckpointWriter>();
  bool armed = false;  // Set before the save.
  bool met = false;

  Result<std::unique_ptr<checkpoint::WritableFile>> create_file(const std::string& path) override {
    const bool of_save = path.find("/.tmp-step-0000000007-") != std::string::npos;
    const bool of_proof = armed && path.ends_with("/rank-00000");
    if (of_save) proof_has_begun_.wait_for(std::chrono::seconds(30));
    if (of_proof && !std::exchange(met, true)) {
      proof_begins_.set_value();
      writer->impl().wait_for(std::chrono::seconds(30));
    }
    return PlainDisk::create_file(path);
  }

 private:
  std::promise<void> proof_begins_;
  const std::shared_future<void> proof_has_begun_ = proof_begins_.get_future().share();
};

class AsyncCheckpointTest : public test::CheckpointTest {
 protected:
  static void fill(Net& net, int value) {
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : net.parameters()) parameter.fill_(value);
  }
  // The value that the checkpoint has which is loaded from the folder now.
  int loaded_value(const GroupPtr& group, std::int64_t step) {
    Net net;
    Checkpointer loader(options(), group);
    loader.add_module("net", net);
    const auto report = loader.load_latest();
    EXPECT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->step, step);
    EXPECT_THAT(report->skipped, IsEmpty());
    const int value = static_cast<int>(net.last->bias[0].item<float>());
    for (const auto& parameter : net.parameters()) {
      EXPECT_TRUE(parameter.eq(value).all().item<bool>());
    }
    return value;
  }
};

TEST_F(AsyncCheckpointTest, ADiskThatNeverAnswersFailsTheSaveAndNotTheTraining) {
  SlowDisk disk;
  Net net;
  CheckpointOptions chosen = options();
  chosen.timeout = std::chrono::seconds(5);
  const auto writer = std::make_shared<CheckpointWriter>();
  Checkpointer checkpointer(chosen, group_, disk, writer);
  checkpointer.add_module("net", net);
  ASSERT_TRUE(checkpointer.prepare());
  fill(net, 5);
  disk.stop();
  ASSERT_TRUE(checkpointer.save(7));
  const auto given_up = checkpointer.wait();
  ASSERT_FALSE(given_up);
  EXPECT_THAT(given_up.error().message, HasSubstr("has been stuck in mkdir for "));
  EXPECT_THAT(given_up.error().message,
              HasSubstr("longer than a save may wait for the disk (5 s)"));
  // Not a second thread and a second copy of the state.
  const auto refused = checkpointer.save(8);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("the disk still holds the writer of step 7"));
  disk.go();
  EXPECT_TRUE(test::wait_until([&] { return writer->impl().left_behind().empty(); }));
  EXPECT_THAT(test::names_in(path()), ElementsAre()) << "what was given up appears no more";
  ASSERT_TRUE(checkpointer.save(9));
  const auto last = checkpointer.wait();
  ASSERT_TRUE(last) << last.error().message;
  EXPECT_EQ(last->step, 9);
  EXPECT_EQ(loaded_value(group_, 9), 5);
}

TEST_F(AsyncCheckpointTest, TrainingGoesOnWhileTheStateOfThatMomentIsWritten) {
  SlowDisk disk;
  Net net;
  Checkpointer checkpointer(options(), group_, disk);
  checkpointer.add_module("net", net);
  ASSERT_TRUE(checkpointer.prepare());
  fill(net, 5);
  disk.stop();
  const auto saved = checkpointer.save(7, 2);
  ASSERT_TRUE(saved) << saved.error().message;
  EXPECT_EQ(saved->state, State::kWriting);
  EXPECT_EQ(saved->note, "");
  fill(net, 6);  // The disk has nothing yet.
  EXPECT_THAT(test::names_in(path()), ElementsAre());
  disk.go();
  const auto last = checkpointer.wait();
  ASSERT_TRUE(last) << last.error().message;
  EXPECT_EQ(last->state, State::kDurable);
  EXPECT_EQ(last->step, 7);
  EXPECT_EQ(last->path, path() + "/step-0000000007");
  EXPECT_EQ(checkpointer.wait()->path, last->path);  // Once more is the same.
  EXPECT_EQ(loaded_value(group_, 7), 5);
}

TEST_F(AsyncCheckpointTest, WithoutASaveThereIsNothingToWaitFor) {
  Checkpointer checkpointer(options(), group_);
  const auto last = checkpointer.wait();
  ASSERT_TRUE(last);
  EXPECT_EQ(last->state, State::kNone);
}

TEST_F(AsyncCheckpointTest, ASecondSaveWaitsForTheFirst) {
  SlowDisk disk;
  run_ranks({2}, [&](const GroupPtr& group) {
    Net net;
    Checkpointer checkpointer(options(), group, disk);
    checkpointer.add_module("net", net);
    ASSERT_TRUE(checkpointer.prepare());
    group->barrier()->wait();
    if (group->rank() == 0) disk.stop();
    group->barrier()->wait();
    fill(net, 1);
    ASSERT_TRUE(checkpointer.save(1));
    // Goes on once the second save has been seen to wait: the file is created by nobody before.
    std::thread opener;
    if (group->rank() == 0) opener = std::thread([&disk] { disk.go_after_a_while(); });
    fill(net, 2);
    const auto second = checkpointer.save(2);
    if (opener.joinable()) opener.join();
    ASSERT_TRUE(second) << second.error().message;
    EXPECT_EQ(second->state, State::kWriting);
    fill(net, 3);
    ASSERT_EQ(checkpointer.wait()->step, 2);
    if (group->rank() == 0) {
      EXPECT_THAT(test::names_in(path()),
                  ElementsAre("latest", "step-0000000001", "step-0000000002"));
    }
    group->barrier()->wait();
    EXPECT_EQ(loaded_value(group, 2), 2);
  });
}

TEST_F(AsyncCheckpointTest, AFailureIsToldByTheNextSaveWhichIsMadeNevertheless) {
  SlowDisk disk;
  disk.victim = "shard-00001";
  run_ranks({3}, [&](const GroupPtr& group) {
    Net net;
    Checkpointer checkpointer(options(), group, disk);
    checkpointer.add_module("net", net);
    ASSERT_TRUE(checkpointer.prepare());
    group->barrier()->wait();
    if (group->rank() == 0) disk.full = true;
    group->barrier()->wait();
    fill(net, 1);
    ASSERT_TRUE(checkpointer.save(1));
    // The fault is over for the second one.
    disk.wait_until_failed();
    group->barrier()->wait();
    disk.full = false;
    group->barrier()->wait();
    fill(net, 2);
    const auto second = checkpointer.save(2);
    ASSERT_FALSE(second);
    EXPECT_THAT(second.error().message,
                HasSubstr("the checkpoint of step 1 was not finished: rank 1: "));
    EXPECT_THAT(second.error().message, HasSubstr("No space left on device"));
    const auto last = checkpointer.wait();
    ASSERT_TRUE(last) << last.error().message;
    EXPECT_EQ(last->step, 2);
    if (group->rank() == 0) {
      EXPECT_THAT(test::names_in(path()), ElementsAre("latest", "step-0000000002"));
    }
    group->barrier()->wait();
    EXPECT_EQ(loaded_value(group, 2), 2);
  });
}

TEST_F(AsyncCheckpointTest, AFailureIsToldByWaitOnce) {
  SlowDisk disk;
  disk.victim = "shard-00000";
  disk.full = true;
  Net net;
  Checkpointer checkpointer(options(), group_, disk);
  checkpointer.add_module("net", net);
  ASSERT_TRUE(checkpointer.prepare());
  ASSERT_TRUE(checkpointer.save(4));
  const auto failed = checkpointer.wait();
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Errc::kIo);
  EXPECT_THAT(failed.error().message, HasSubstr("the checkpoint of step 4 was not finished: "));
  EXPECT_TRUE(checkpointer.wait());
  EXPECT_THAT(test::names_in(path()), IsEmpty());
}

TEST_F(AsyncCheckpointTest, WithoutMemoryForACopyOnAnyRankAllWaitForTheDiskAndSaySo) {
  run_ranks({2}, [&](const GroupPtr& group) {
    Net net;
    fill(net, 3);
    CheckpointOptions chosen = options();
    if (group->rank() == 1) chosen.snapshot_limit = 100;
    Checkpointer checkpointer(chosen, group);
    checkpointer.add_module("net", net);
    ASSERT_TRUE(checkpointer.prepare());
    const auto saved = checkpointer.save(1);
    ASSERT_TRUE(saved) << saved.error().message;
    EXPECT_EQ(saved->state, State::kDurable);
    EXPECT_EQ(saved->path, path() + "/step-0000000001");
    EXPECT_THAT(saved->note, HasSubstr("no memory for a copy"));
    EXPECT_EQ(loaded_value(group, 1), 3);
  });
}

// What travels to the writer is what was there, shared tensors and empty ones included.
TEST_F(AsyncCheckpointTest, EachRankWritesItsShareOfWhatIsTheSame) {
  run_ranks({4}, [&](const GroupPtr& group) {
    Net net;
    fill(net, 1);
    net.register_parameter("again", net.last->weight);
    net.register_buffer("empty", torch::zeros({0, 3}));
    {
      // Batch norm has other buffers on each rank; rank 0's count.
      const torch::NoGradGuard no_grad;
      net.norm->running_mean.fill_(10 + group->rank());
    }
    Checkpointer checkpointer(options(), group);
    checkpointer.add_module("net", net);
    ASSERT_TRUE(checkpointer.prepare());
    ASSERT_TRUE(checkpointer.save(1));
    const auto last = checkpointer.wait();
    ASSERT_TRUE(last) << last.error().message;
    if (group->rank() == 0) {
      EXPECT_THAT(test::names_in(last->path),
                  ElementsAre("manifest.json", "shard-00000.safetensors", "shard-00001.safetensors",
                              "shard-00002.safetensors", "shard-00003.safetensors"));
    }
    Net other;
    other.register_parameter("again", other.last->weight);
    other.register_buffer("empty", torch::zeros({0, 3}));
    Checkpointer loader(options(), group);
    loader.add_module("net", other);
    const auto loaded = loader.load_latest();
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_TRUE(other.norm->running_mean.eq(10).all().item<bool>());
    EXPECT_TRUE(other.first->weight.eq(1).all().item<bool>());
  });
}

TEST_F(AsyncCheckpointTest, WhereRanksDifferAllIsRankZeros) {
  run_ranks({3}, [&](const GroupPtr& group) {
    Net net;
    fill(net, 20 + group->rank());
    CheckpointOptions chosen = options();
    chosen.ranks_are_equal = false;
    Checkpointer checkpointer(chosen, group);
    checkpointer.add_module("net", net);
    ASSERT_TRUE(checkpointer.prepare());
    ASSERT_TRUE(checkpointer.save(1));
    ASSERT_TRUE(checkpointer.wait());
    EXPECT_EQ(loaded_value(group, 1), 20);
  });
}

TEST_F(AsyncCheckpointTest, OtherTensorsOnOneRankAreAMismatch) {
  run_ranks({2}, [&](const GroupPtr& group) {
    Net net(group->rank() == 1 ? 13 : 12);
    Checkpointer checkpointer(options(), group);
    checkpointer.add_module("net", net);
    ASSERT_TRUE(checkpointer.prepare());
    const auto saved = checkpointer.save(1);
    ASSERT_FALSE(saved);
    EXPECT_EQ(saved.error().code, Errc::kMismatch);
    EXPECT_THAT(saved.error().message, HasSubstr("module/net/first.weight F32 [13,144] here"));
    EXPECT_THAT(test::names_in(path()), IsEmpty());
  });
}

// The next round's Checkpointer in the same process: the save of the round before is there once,
// and none of its ranks has kept the other from going on.
TEST_F(AsyncCheckpointTest, ASaveUnderWayOutlivesItsRound) {
  SlowDisk disk;
  run_ranks({2}, [&](const GroupPtr& group) {
    const auto writer = std::make_shared<CheckpointWriter>();
    Net net;
    {
      Checkpointer first(options(), group, disk, writer);
      first.add_module("net", net);
      ASSERT_TRUE(first.prepare());
      group->barrier()->wait();
      if (group->rank() == 0) disk.stop();
      group->barrier()->wait();
      fill(net, 1);
      ASSERT_TRUE(first.save(1));
    }
    Checkpointer second(options(), group, disk, writer);
    second.add_module("net", net);
    disk.go();
    ASSERT_TRUE(second.prepare());
    fill(net, 2);
    ASSERT_TRUE(second.save(2));
    const auto last = second.wait();
    ASSERT_TRUE(last) << last.error().message;
    EXPECT_EQ(last->step, 2);
    EXPECT_THAT(second.warnings(), IsEmpty());
    if (group->rank() == 0) {
      EXPECT_THAT(test::names_in(path()),
                  ElementsAre("latest", "step-0000000001", "step-0000000002"));
    }
  });
}

TEST_F(AsyncCheckpointTest, ASaveThatEndsLeavesTheProofOfTheNextRoundAlone) {
  SaveEndsDuringTheProof disk;
  Net net;
  {
    Checkpointer first(options(), group_, disk, disk.writer);
    first.add_module("net", net);
    ASSERT_TRUE(first.prepare());
    disk.armed = true;
    ASSERT_TRUE(first.save(7));
  }
  Checkpointer second(options(), group_, disk, disk.writer);
  second.add_module("net", net);
  const auto prepared = second.prepare();
  EXPECT_TRUE(prepared) << prepared.error().message;
  EXPECT_TRUE(disk.met);
  EXPECT_THAT(second.warnings(), IsEmpty());
  EXPECT_THAT(test::names_in(path()), ElementsAre("latest", "step-0000000007"));
}

CheckpointOptions options_in(const TempDir& folder, bool asynchronous) {
  CheckpointOptions chosen;
  chosen.directory = folder.path();
  chosen.asynchronous = asynchronous;
  return chosen;
}

// Whatever is killed: a training that goes on from a checkpoint has been told how long it has held
// training up, and can ask how long writing took.
TEST_F(AsyncCheckpointTest, TimesAreToldBeforeTheCheckpointCanBeLoadedAndOnceItIsThere) {
  for (const bool asynchronous : {true, false}) {
    const TempDir folder;
    run_ranks({2}, [&](const GroupPtr& group) {
      Net net;
      std::vector<std::string> told;
      const auto note = [&](const char* what, std::int64_t step, double seconds) {
        EXPECT_EQ(group->rank(), 0);
        EXPECT_GE(seconds, 0);
        EXPECT_LT(seconds, 300);
        const std::string name = fmt::format("step-{:010}", step);
        const bool there = std::filesystem::exists(folder.path() / name);
        told.push_back(fmt::format("{} {}{}", step, what, there ? "" : " before it is there"));
      };
      Checkpointer checkpointer(options_in(folder, asynchronous), group);
      checkpointer.add_module("net", net);
      checkpointer.tell_times(
          {.held = [&](std::int64_t step, double seconds) { note("held", step, seconds); },
           .written = [&](std::int64_t step, double seconds) { note("written", step, seconds); }});
      ASSERT_TRUE(checkpointer.prepare());
      for (const std::int64_t step : {4, 8}) ASSERT_TRUE(checkpointer.save(step));
      ASSERT_TRUE(checkpointer.wait());
      checkpointer.tell_newest(7);
      checkpointer.tell_newest(3);
      if (group->rank() != 0) {
        EXPECT_THAT(told, IsEmpty());
        return;
      }
      EXPECT_THAT(told, ElementsAre("4 held before it is there", "4 written",
                                    "8 held before it is there", "8 written", "4 written"));
    });
  }
}

// As if the disk of the curves were full.
TEST_F(AsyncCheckpointTest, WhoCannotRecordATimeCostsNoCheckpoint) {
  for (const bool asynchronous : {true, false}) {
    const TempDir folder;
    run_ranks({2}, [&](const GroupPtr& group) {
      Net net;
      Checkpointer checkpointer(options_in(folder, asynchronous), group);
      checkpointer.add_module("net", net);
      const auto fail = [](std::int64_t, double) { throw std::runtime_error("the disk is full"); };
      checkpointer.tell_times({.held = fail, .written = fail});
      ASSERT_TRUE(checkpointer.prepare());
      ASSERT_TRUE(checkpointer.save(4));
      EXPECT_THAT(checkpointer.warnings(),
                  group->rank() == 0
                      ? Contains(HasSubstr("step 4 took is not recorded: the disk is full"))
                      : testing::Matcher<std::vector<std::string>>(IsEmpty()));
      ASSERT_TRUE(checkpointer.save(8));
      const auto last = checkpointer.wait();
      ASSERT_TRUE(last);
      EXPECT_EQ(last->step, 8);
      const auto loaded = checkpointer.load_latest();
      ASSERT_TRUE(loaded);
      EXPECT_EQ(loaded->step, 8);
    });
  }
}

TEST_F(AsyncCheckpointTest, TheTimeOfASaveOfAnEarlierRoundIsTold) {
  const auto writer = std::make_shared<CheckpointWriter>();
  Net net;
  {
    Checkpointer first(options(), group_, writer);
    first.add_module("net", net);
    ASSERT_TRUE(first.prepare());
    ASSERT_TRUE(first.save(4));
  }
  // Step 4 is made again where the training goes on before it.
  for (const std::int64_t step : {4, 8}) {
    std::vector<std::int64_t> told;
    Checkpointer next(options(), group_, writer);
    next.add_module("net", net);
    next.tell_times({.held = {}, .written = [&](std::int64_t of, double) { told.push_back(of); }});
    ASSERT_TRUE(next.prepare());
    ASSERT_TRUE(next.save(step));
    if (step == 4) {
      EXPECT_THAT(told, IsEmpty());
    } else {
      EXPECT_THAT(told, ElementsAre(4));
    }
  }
}

TEST_F(AsyncCheckpointTest, AFailureInAnEarlierRoundIsAWarning) {
  SlowDisk disk;
  disk.victim = "shard-00000";
  const auto writer = std::make_shared<CheckpointWriter>();
  Net net;
  {
    Checkpointer first(options(), group_, disk, writer);
    first.add_module("net", net);
    ASSERT_TRUE(first.prepare());
    disk.full = true;
    ASSERT_TRUE(first.save(1));
    disk.wait_until_failed();
    disk.full = false;
  }
  Checkpointer second(options(), group_, disk, writer);
  second.add_module("net", net);
  ASSERT_TRUE(second.prepare());
  ASSERT_TRUE(second.save(2));
  EXPECT_THAT(second.warnings(),
              ElementsAre(HasSubstr("step 1, begun in an earlier round, was not finished")));
  EXPECT_EQ(second.wait()->step, 2);
}

}  // namespace
}  // namespace ddp
