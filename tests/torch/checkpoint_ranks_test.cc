#include <atomic>
#include <chrono>
#include <future>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"
#include "tests/torch/checkpoint_model.h"
#include "tests/torch/rank_threads.h"
#include "tests/torch/slow_disk.h"

// Several ranks: one answer for all of them, per-rank state, another world size, and failures on
// one rank alone.
namespace ddp {
namespace {

using checkpoint::FileSystem;
using nlohmann::json;
using test::GroupPtr;
using test::Net;
using test::run_ranks;
using test::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

// The real disk, but what concerns one path fails while it is told to. Any thread.
class FaultyDisk final : public test::PlainDisk {
 public:
  std::atomic<bool> full = false;        // Creating a file with this in its path fails.
  std::atomic<bool> unreadable = false;  // Opening it fails.
  std::string victim;

  Result<std::unique_ptr<checkpoint::WritableFile>> create_file(const std::string& path) override {
    if (full && path.find(victim) != std::string::npos) {
      return make_error(Errc::kIo, "cannot write {}: No space left on device", path);
    }
    return PlainDisk::create_file(path);
  }
  Result<std::unique_ptr<checkpoint::ReadableFile>> open_file(const std::string& path) override {
    if (is_unreadable(path)) return unreadable_error(path);
    return PlainDisk::open_file(path);
  }
  Result<std::shared_ptr<const checkpoint::MappedFile>> map_file(const std::string& path) override {
    if (is_unreadable(path)) return unreadable_error(path);
    return PlainDisk::map_file(path);
  }

 private:
  bool is_unreadable(const std::string& path) const {
    return unreadable && path.find(victim) != std::string::npos;
  }
  static Error unreadable_error(const std::string& path) {
    return make_error(Errc::kIo, "cannot read {}: Input/output error", path);
  }
};

// What a rank's training would have.
struct Trainer {
  Trainer(const GroupPtr& group, const std::string& path,
          FileSystem& files = checkpoint::posix_file_system())
      : rank(group->rank()), checkpointer(test::at_once(path), group, files) {
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : net.parameters()) parameter.fill_(-1);
    checkpointer.add_module("net", net);
    checkpointer.add_value(
        "shared", [this] { return json(shared); },
        [this](const json& value) { shared = value.get<int>(); });
    checkpointer.add_value(
        "own", [this] { return json(own); }, [this](const json& value) { own = value.get<int>(); },
        true);
  }
  void set(int value) {
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : net.parameters()) parameter.fill_(value);
    shared = value;
    own = 100 * value + rank;
  }
  bool has(int value) const {
    for (const auto& parameter : net.parameters()) {
      if (!parameter.eq(value).all().item<bool>()) return false;
    }
    return shared == value;
  }

  Rank rank;
  Net net;
  int shared = -1;
  int own = -1;
  Checkpointer checkpointer;
};

// Collects one text from every rank.
class Answers {
 public:
  void add(Rank rank, std::string text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    texts_[rank] = std::move(text);
  }
  std::vector<std::string> all() const {
    std::vector<std::string> list;
    for (const auto& [rank, text] : texts_) list.push_back(text);
    return list;
  }

 private:
  std::mutex mutex_;
  std::map<Rank, std::string> texts_;
};

class CheckpointRanksTest : public ::testing::Test {
 protected:
  std::string path() const { return (folder_.path() / "ckpt").string(); }

  void save_with(const std::vector<int>& nodes, std::int64_t step, int value) {
    run_ranks(nodes, [&](const GroupPtr& group) {
      Trainer trainer(group, path());
      trainer.set(value);
      ASSERT_TRUE(trainer.checkpointer.prepare());
      auto saved = trainer.checkpointer.save(step);
      ASSERT_TRUE(saved) << saved.error().message;
    });
  }

  TempDir folder_;
};

TEST_F(CheckpointRanksTest, EveryRankGetsTheSharedStateAndItsOwn) {
  save_with({2, 1}, 4, 7);
  run_ranks({1, 2}, [&](const GroupPtr& group) {
    Trainer trainer(group, path());
    auto loaded = trainer.checkpointer.load_latest();
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(loaded->step, 4);
    EXPECT_EQ(loaded->world_size, 3);
    EXPECT_TRUE(loaded->notes.empty());
    EXPECT_TRUE(trainer.has(7));
    EXPECT_EQ(trainer.own, 700 + group->rank());
  });
}

TEST_F(CheckpointRanksTest, ALargerWorldKeepsWhatItsNewRanksHave) {
  save_with({2}, 4, 7);
  run_ranks({2, 2}, [&](const GroupPtr& group) {
    Trainer trainer(group, path());
    auto loaded = trainer.checkpointer.load_latest();
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_TRUE(trainer.has(7));
    EXPECT_EQ(trainer.own, group->rank() < 2 ? 700 + group->rank() : -1);
    EXPECT_THAT(loaded->notes,
                ElementsAre(HasSubstr("is of 2 ranks, now there are 4: from rank 2 on")));
  });
}

TEST_F(CheckpointRanksTest, ASmallerWorldDropsWhatNobodyOwns) {
  save_with({4}, 4, 7);
  run_ranks({2}, [&](const GroupPtr& group) {
    Trainer trainer(group, path());
    auto loaded = trainer.checkpointer.load_latest();
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_TRUE(trainer.has(7));
    EXPECT_EQ(trainer.own, 700 + group->rank());
    EXPECT_THAT(loaded->notes, ElementsAre(HasSubstr("from rank 2 on is dropped")));
  });
}

// The generators are per rank, so every rank has a file of its own to fail with.
void add_own_file(Trainer& trainer) { trainer.checkpointer.add_rng(); }

TEST_F(CheckpointRanksTest, AFullDiskOnOneRankFailsTheSameEverywhereAndTrainingGoesOn) {
  FaultyDisk disk;
  disk.victim = "/rank-00001";
  Answers answers;
  run_ranks({3}, [&](const GroupPtr& group) {
    Trainer trainer(group, path(), disk);
    add_own_file(trainer);
    ASSERT_TRUE(trainer.checkpointer.prepare());
    trainer.set(1);
    ASSERT_TRUE(trainer.checkpointer.save(1));
    group->barrier()->wait();
    disk.full = true;
    trainer.set(2);
    auto failed = trainer.checkpointer.save(2);
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, Errc::kIo);
    answers.add(group->rank(), failed.error().message);
    group->barrier()->wait();
    if (group->rank() == 0) {
      EXPECT_THAT(test::names_in(path()), ElementsAre("latest", "step-0000000001"));
    }
    disk.full = false;
    trainer.set(3);
    group->barrier()->wait();
    ASSERT_TRUE(trainer.checkpointer.save(3));
    EXPECT_EQ(trainer.checkpointer.load_latest()->step, 3);
  });
  ASSERT_THAT(answers.all(), SizeIs(3));
  EXPECT_THAT(answers.all()[0], StartsWith("rank 1: cannot write "));
  EXPECT_THAT(answers.all()[0], HasSubstr("No space left on device"));
  EXPECT_EQ(answers.all()[1], answers.all()[0]);
  EXPECT_EQ(answers.all()[2], answers.all()[0]);
}

TEST_F(CheckpointRanksTest, AFileThatRankZeroCannotReadMeansTheOlderOneForAll) {
  FaultyDisk disk;
  disk.victim = "step-0000000002/rank-00001";
  Answers answers;
  run_ranks({2}, [&](const GroupPtr& group) {
    Trainer trainer(group, path(), disk);
    add_own_file(trainer);
    ASSERT_TRUE(trainer.checkpointer.prepare());
    for (const int step : {1, 2}) {
      trainer.set(step);
      ASSERT_TRUE(trainer.checkpointer.save(step));
    }
    disk.unreadable = true;
    auto loaded = trainer.checkpointer.load_latest();
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(loaded->step, 1);
    EXPECT_TRUE(trainer.has(1));
    ASSERT_THAT(loaded->skipped, SizeIs(1));
    answers.add(group->rank(), loaded->skipped[0]);
  });
  EXPECT_THAT(answers.all()[0], HasSubstr("Input/output error"));
  EXPECT_EQ(answers.all()[1], answers.all()[0]);
}

// Each rank has a disk of its own here, and only rank 1's is bad.
TEST_F(CheckpointRanksTest, AFileThatAnotherRankCannotReadMeansTheOlderOneForAll) {
  Answers answers;
  run_ranks({2}, [&](const GroupPtr& group) {
    FaultyDisk disk;
    disk.victim = "step-0000000002/shard";
    Trainer trainer(group, path(), disk);
    ASSERT_TRUE(trainer.checkpointer.prepare());
    for (const int step : {1, 2}) {
      trainer.set(step);
      ASSERT_TRUE(trainer.checkpointer.save(step));
    }
    disk.unreadable = group->rank() == 1;
    trainer.set(9);
    auto loaded = trainer.checkpointer.load_latest();
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(loaded->step, 1);
    EXPECT_TRUE(trainer.has(1));
    EXPECT_EQ(trainer.own, 100 + group->rank());
    ASSERT_THAT(loaded->skipped, SizeIs(1));
    answers.add(group->rank(), loaded->skipped[0]);
  });
  EXPECT_THAT(answers.all()[0], HasSubstr("step-0000000002 passed over: rank 1: cannot read"));
  EXPECT_EQ(answers.all()[1], answers.all()[0]);
}

// What prepare() says of the folder.
std::string refusal_of(Trainer& trainer) {
  const auto prepared = trainer.checkpointer.prepare();
  EXPECT_FALSE(prepared);
  if (prepared) return "";
  EXPECT_EQ(prepared.error().code, Errc::kIo);
  return prepared.error().message;
}

TEST_F(CheckpointRanksTest, AFolderThatOneRankCannotWriteIsFoundOutByPrepare) {
  FaultyDisk disk;
  disk.victim = "/rank-00002";
  disk.full = true;
  Answers answers;
  run_ranks({2, 1}, [&](const GroupPtr& group) {
    Trainer trainer(group, path(), disk);
    answers.add(group->rank(), refusal_of(trainer));
  });
  EXPECT_THAT(answers.all()[0], StartsWith("rank 2: the checkpoint folder " + path() +
                                           " must be writable by all ranks: cannot write "));
  EXPECT_EQ(answers.all()[1], answers.all()[0]);
  EXPECT_EQ(answers.all()[2], answers.all()[0]);
  EXPECT_THAT(test::names_in(path()), SizeIs(0));
}

// Both can be written, but a checkpoint would never be whole.
TEST_F(CheckpointRanksTest, AFolderOfItsOwnIsFoundOutByPrepare) {
  Answers answers;
  run_ranks({1, 1}, [&](const GroupPtr& group) {
    const std::string own = path() + "-of-" + std::to_string(group->rank());
    Trainer trainer(group, own);
    answers.add(group->rank(), refusal_of(trainer));
  });
  EXPECT_THAT(answers.all()[0], StartsWith("rank 1: the checkpoint folder " + path() +
                                           "-of-1 is not the same one as rank 0's: "));
  EXPECT_EQ(answers.all()[1], answers.all()[0]);
  EXPECT_THAT(test::names_in(path() + "-of-0"), SizeIs(0));
}

TEST_F(CheckpointRanksTest, AThrowingLoadOnOneRankChangesNoRank) {
  save_with({2}, 1, 7);
  run_ranks({2}, [&](const GroupPtr& group) {
    Trainer trainer(group, path());
    trainer.checkpointer.add_value(
        "fragile", [] { return json(0); }, [](const json&) {});
    trainer.set(7);
    ASSERT_TRUE(trainer.checkpointer.save(2));
    Trainer other(group, path());
    other.checkpointer.add_value(
        "fragile", [] { return json(0); },
        [&](const json&) {
          if (group->rank() == 1) throw std::runtime_error("boom");
        });
    other.set(9);
    auto loaded = other.checkpointer.load_latest();
    ASSERT_FALSE(loaded);
    EXPECT_THAT(loaded.error().message, HasSubstr("rank 1: loading the value \"fragile\""));
    EXPECT_TRUE(other.has(9));
    EXPECT_EQ(other.own, 900 + group->rank());
  });
}

TEST_F(CheckpointRanksTest, DifferentRegistrationsAreAMismatchOnAllRanks) {
  run_ranks({2}, [&](const GroupPtr& group) {
    Trainer trainer(group, path());
    if (group->rank() == 1) trainer.checkpointer.add_rng();
    ASSERT_TRUE(trainer.checkpointer.prepare());
    auto saved = trainer.checkpointer.save(1);
    ASSERT_FALSE(saved);
    EXPECT_EQ(saved.error().code, Errc::kMismatch);
    EXPECT_THAT(saved.error().message,
                HasSubstr("rank 1: this rank has registered different state"));
  });
}

TEST_F(CheckpointRanksTest, AThrowingSaveOnOneRankFailsAll) {
  run_ranks({2}, [&](const GroupPtr& group) {
    Trainer trainer(group, path());
    trainer.checkpointer.add_value(
        "fragile",
        [&]() -> json {
          if (group->rank() == 1) throw std::runtime_error("boom");
          return 1;
        },
        [](const json&) {}, true);
    ASSERT_TRUE(trainer.checkpointer.prepare());
    auto saved = trainer.checkpointer.save(1);
    ASSERT_FALSE(saved);
    EXPECT_THAT(saved.error().message,
                HasSubstr("rank 1: saving the value \"fragile\" failed: boom"));
  });
}

TEST_F(CheckpointRanksTest, AnAbortedGroupLeavesNoTemporaryFolder) {
  // Not a barrier: who is still in one when the group is aborted fails in it.
  std::promise<void> saved;
  run_ranks({2}, [&](const GroupPtr& group) {
    Trainer trainer(group, path());
    ASSERT_TRUE(trainer.checkpointer.prepare());
    trainer.set(1);
    ASSERT_TRUE(trainer.checkpointer.save(1));
    if (group->rank() == 0) saved.set_value();
    if (group->rank() == 1) {
      saved.get_future().wait_for(std::chrono::seconds(30));
      group->abort("rank 1 is gone");
      return;
    }
    EXPECT_THROW((void)trainer.checkpointer.save(2), CollectiveError);
    EXPECT_THAT(test::names_in(path()), ElementsAre("latest", "step-0000000001"));
  });
}

}  // namespace
}  // namespace ddp
