#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

#include "tests/support/memory_file_system.h"
#include "tests/support/plain_disk.h"
#include "tests/support/sanitizer.h"
#include "tests/support/snapshot_samples.h"
#include "tests/support/turns.h"
#include "worker/checkpoint/snapshot_writer.h"

// The writers of several ranks, each a simulated process, on one simulated disk. At every single
// operation they are killed, the power is cut, or the operation fails. Afterwards there is always a
// complete checkpoint, the old or the new one, and the next save succeeds.
namespace ddp::checkpoint {
namespace {

using test::fault_of;
using test::MemoryFileSystem;
using test::SampleSave;
using test::share_of;
using test::Turns;

constexpr const char* kFolder = "a/b";
constexpr int kWorld = 3;

// A sanitizer looks at the same code in fewer histories.
constexpr std::uint64_t few(std::uint64_t many) {
  return test::kSlowness == 1 ? many : std::max<std::uint64_t>(1, many / test::kSlowness);
}
constexpr std::uint64_t kHistories = few(4);

std::uint64_t seed() {
  const char* given = std::getenv("DDP_TEST_SEED");
  static const std::uint64_t value = given != nullptr ? std::strtoull(given, nullptr, 10) : 11;
  return value;
}

SampleSave save_of(std::int64_t step, std::uint64_t salt) {
  return {.directory = kFolder,
          .save_id = "save" + std::to_string(salt),
          .step = step,
          .salt = salt,
          .world_size = kWorld,
          .retention = {2, 0}};
}

WriterOptions options_of(Turns::Process& process) {
  return {.part_timeout = std::chrono::seconds(10),
          .cancelled = {},
          .now = [&process] { return process.now(); },
          .sleep = [&process](std::chrono::nanoseconds time) { process.pass(time); }};
}

Result<Written> write_rank(FileSystem& files, const SampleSave& save, Rank rank,
                           const WriterOptions& options) {
  const test::SampleShare share = share_of(save, rank);
  return write_snapshot(files, share.live(), options);
}

// One after the other, the publisher last: nobody waits.
::testing::AssertionResult write_in_order(FileSystem& files, const SampleSave& save) {
  for (Rank rank = kWorld - 1; rank >= 0; --rank) {
    auto written = write_rank(files, save, rank, {});
    if (!written) {
      return ::testing::AssertionFailure() << "rank " << rank << ": " << written.error().message;
    }
  }
  return ::testing::AssertionSuccess();
}

// What a new process finds: nothing damaged; the newest. Nothing if there is none.
struct Newest {
  std::optional<ValidSearch::Found> found;
  std::string damage;
};
Newest newest_of(FileSystem& files) {
  Directory directory(files, kFolder);
  ValidSearch search(directory);
  auto found = test::next_valid(directory, search);
  if (!found) return {std::nullopt, found.error().message};
  while (test::next_valid(directory, search)->has_value()) continue;
  return {std::move(*found), search.skipped().empty() ? "" : search.skipped()[0]};
}

std::size_t temporaries(MemoryFileSystem& files) {
  const auto names = files.names(kFolder);
  return static_cast<std::size_t>(
      std::count_if(names.begin(), names.end(),
                    [](const std::string& name) { return name.starts_with(".tmp-"); }));
}

// Saves one after the other, the same step twice among them.
const std::vector<std::int64_t> kSteps = {1, 2, 2, 3};

class Cuts {
 public:
  explicit Cuts(std::uint64_t of_seed) : seed_(of_seed), dice_(of_seed) {}

  void run() {
    ASSERT_TRUE(Directory(files_, kFolder).prepare());
    for (const std::int64_t step : kSteps) {
      const SampleSave save = save_of(step, saves_.size() + 1);
      saves_.push_back(save);
      Turns turns(files_, dice_(), [this] { cut_here(); });
      std::vector<std::function<void(Turns::Process&)>> writers;
      for (Rank rank = 0; rank < kWorld; ++rank) {
        writers.push_back([&, rank](Turns::Process& process) {
          auto written = write_rank(process, save, rank, options_of(process));
          EXPECT_TRUE(written) << written.error().message;
        });
      }
      turns.run(writers);
      acknowledged_ = saves_.size();
      if (::testing::Test::HasFailure()) return;
    }
  }

  std::size_t points() const { return points_; }

 private:
  // Everything dies here, in several ways.
  void cut_here() {
    if (::testing::Test::HasFailure()) return;
    MemoryFileSystem killed = files_.after_kill();
    check("killed", killed, Then::kAgain);
    for (int variant = 0; variant < 9; ++variant) {
      MemoryFileSystem cut = files_.after_power_cut(dice_);
      check("power cut " + std::to_string(variant), cut, variant == 0 ? Then::kNext : Then::kLook);
    }
  }

  enum class Then {
    kAgain,  // The agents have the snapshots and finish the save.
    kNext,   // A new run of the job saves.
    kLook,
  };
  void check(const std::string& how, MemoryFileSystem& after, Then then) {
    ++points_;
    SCOPED_TRACE(how + " before change " + std::to_string(files_.operations()) + ", seed " +
                 std::to_string(seed_));
    expect_old_or_new(after);
    if (then == Then::kAgain) finish(after);
    if (then != Then::kLook) save_next(after);
  }

  void finish(MemoryFileSystem& after) {
    const SampleSave& save = saves_.back();
    ASSERT_TRUE(write_in_order(after, save));
    expect_newest(after, save);
    // It is durable now, also what a killed writer had written and not synced.
    for (int variant = 0; variant < 2; ++variant) {
      MemoryFileSystem cut = after.after_power_cut(dice_);
      expect_newest(cut, save);
    }
    // And once more, because the agent did not hear that it was done.
    ASSERT_TRUE(write_in_order(after, save));
    const auto published = Directory(after, kFolder).find_save(save.step, save.save_id).value();
    ASSERT_TRUE(published);
    EXPECT_EQ(published->generation, saves_.size() == 3 ? 1 : 0);
  }

  void save_next(MemoryFileSystem& after) {
    ASSERT_TRUE(Directory(after, kFolder).prepare());
    EXPECT_EQ(temporaries(after), 0u);
    const SampleSave next = save_of(3, 99);
    ASSERT_TRUE(write_in_order(after, next));
    expect_newest(after, next);
    EXPECT_EQ(temporaries(after), 0u);
  }

  void expect_old_or_new(MemoryFileSystem& after) {
    const auto [found, damage] = newest_of(after);
    EXPECT_EQ(damage, "") << "an incomplete checkpoint is visible";
    if (!found) {
      EXPECT_EQ(acknowledged_, 0u) << "a saved checkpoint is lost";
      return;
    }
    const auto salt = found->manifest.state.at("salt").get<std::size_t>();
    EXPECT_GE(salt, acknowledged_) << "a saved checkpoint is lost";
    ASSERT_LE(salt, saves_.size());
    EXPECT_EQ(fault_of(after, *found, saves_[salt - 1]), "");
  }

  static void expect_newest(MemoryFileSystem& files, const SampleSave& save) {
    const auto [found, damage] = newest_of(files);
    EXPECT_EQ(damage, "");
    ASSERT_TRUE(found);
    EXPECT_EQ(fault_of(files, *found, save), "");
  }

  std::uint64_t seed_;
  std::mt19937_64 dice_;
  MemoryFileSystem files_;
  std::vector<SampleSave> saves_;
  std::size_t acknowledged_ = 0;
  std::size_t points_ = 0;
};

TEST(CheckpointWriterCrash, AfterAKillOrAPowerCutAnywhereACompleteCheckpointIsThere) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed()));
  std::size_t points = 0;
  for (std::uint64_t history = 0; history < kHistories; ++history) {
    Cuts cuts(seed() * 1000003 + history);
    cuts.run();
    points += cuts.points();
    if (HasFailure()) return;
  }
  std::printf("%zu cut points\n", points);
  EXPECT_GE(points, 2500 * kHistories);
}

// A disk with one checkpoint, and what two ranks' writers do on it.
class CheckpointWriter : public ::testing::Test {
 protected:
  CheckpointWriter() {
    EXPECT_TRUE(Directory(base_, kFolder).prepare());
    EXPECT_TRUE(write_in_order(base_, old_));
  }

  // Runs the save's writers at the same time; each again while it is killed. `prepare` sees each
  // before it starts.
  std::vector<Result<Written>> write(
      MemoryFileSystem& files, std::uint64_t of_seed,
      const std::function<void(Rank, Turns::Process&)>& prepare = {}) {
    std::vector<Result<Written>> results(kWorld, Result<Written>(Written()));
    std::vector<std::function<void(Turns::Process&)>> writers;
    for (Rank rank = 0; rank < kWorld; ++rank) {
      writers.push_back([&, rank](Turns::Process& process) {
        if (prepare) prepare(rank, process);
        auto& result = results[static_cast<std::size_t>(rank)];
        while (true) {
          result = write_rank(process, new_, rank, options_of(process));
          if (!process.killed()) break;
          process.revive();
        }
        changes_[static_cast<std::size_t>(rank)] = process.changes();
      });
    }
    Turns(files, of_seed).run(writers);
    return results;
  }

  void expect_only(MemoryFileSystem& files, const SampleSave& save) {
    const auto [found, damage] = newest_of(files);
    EXPECT_EQ(damage, "");
    ASSERT_TRUE(found);
    EXPECT_EQ(fault_of(files, *found, save), "");
  }

  MemoryFileSystem base_;
  SampleSave old_ = save_of(1, 1);
  SampleSave new_ = save_of(2, 2);
  std::array<std::size_t, kWorld> changes_{};
};

// One writer is killed and started again by its agent while the others go on.
TEST_F(CheckpointWriter, OneKilledAnywhereAndStartedAgainIsNotNoticed) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed()));
  for (std::uint64_t variant = 0; variant < few(6); ++variant) {
    for (Rank victim = 0; victim < kWorld; ++victim) {
      std::size_t last = 1;
      for (std::size_t at = 0; at < last; ++at) {
        SCOPED_TRACE(
            fmt::format("rank {} killed before its change {}, variant {}", victim, at, variant));
        MemoryFileSystem files = base_.after_kill();
        const auto results = write(files, seed() * 7919 + variant * 31 + at,
                                   [&](Rank rank, Turns::Process& process) {
                                     if (rank == victim) process.kill_at(at);
                                   });
        last = std::max(last, changes_[static_cast<std::size_t>(victim)]);
        for (const auto& result : results) EXPECT_TRUE(result) << result.error().message;
        expect_only(files, new_);
        EXPECT_EQ(Directory(files, kFolder).list()->size(), 2u);
        EXPECT_EQ(temporaries(files), 0u);
        if (HasFailure()) return;
        if (last > 200) FAIL() << "it never gets through";
      }
    }
  }
}

// It is done, but its agent did not hear so and starts it again while the publisher publishes.
TEST_F(CheckpointWriter, OneThatIsDoneAndStartedAgainTouchesNothing) {
  for (std::uint64_t variant = 0; variant < few(300); ++variant) {
    SCOPED_TRACE(variant);
    MemoryFileSystem files = base_.after_kill();
    std::vector<std::function<void(Turns::Process&)>> writers;
    for (Rank rank = 0; rank < kWorld; ++rank) {
      writers.push_back([&, rank](Turns::Process& process) {
        for (int i = 0; i < (rank == 0 ? 1 : 4); ++i) {
          auto written = write_rank(process, new_, rank, options_of(process));
          EXPECT_TRUE(written) << written.error().message;
          EXPECT_EQ(written->path.empty(), rank != 0);
        }
      });
    }
    Turns(files, seed() * 104729 + variant).run(writers);
    expect_only(files, new_);
    EXPECT_EQ(temporaries(files), 0u);
    if (HasFailure()) return;
  }
}

// The publisher was killed on its way; it and a rank that is done are started again together.
TEST_F(CheckpointWriter, OneThatIsDoneIsStartedAgainWithTheKilledPublisher) {
  std::size_t last = 1;
  for (std::size_t at = 0; at < last; ++at) {
    MemoryFileSystem killed = base_.after_kill();
    for (const Rank rank : {2, 1}) ASSERT_TRUE(write_rank(killed, new_, rank, {}));
    const auto publisher = [&](Turns::Process& process) {
      process.kill_at(at);
      (void)write_rank(process, new_, 0, options_of(process));
      last = std::max(last, process.changes());
    };
    Turns(killed, seed()).run({publisher});
    for (std::uint64_t variant = 0; variant < few(40); ++variant) {
      SCOPED_TRACE(fmt::format("publisher killed before its change {}, variant {}", at, variant));
      MemoryFileSystem files = killed.after_kill();
      std::vector<std::function<void(Turns::Process&)>> writers;
      for (Rank rank = 0; rank < 2; ++rank) {
        writers.push_back([&, rank](Turns::Process& process) {
          auto written = write_rank(process, new_, rank, options_of(process));
          EXPECT_TRUE(written) << written.error().message;
        });
      }
      Turns(files, seed() * 7907 + variant * 211 + at).run(writers);
      expect_only(files, new_);
      EXPECT_EQ(Directory(files, kFolder).list()->size(), 2u);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(last, 20u);
}

TEST_F(CheckpointWriter, AFailureAnywhereLeavesTheOldOrTheNewOneAndTheNextSaveSucceeds) {
  for (const auto fault : {MemoryFileSystem::Fault::kIo, MemoryFileSystem::Fault::kNoSpace}) {
    std::size_t last = 1;
    std::size_t told = 0;
    for (std::size_t at = 0; at < last; ++at) {
      for (std::uint64_t variant = 0; variant < 3; ++variant) {
        SCOPED_TRACE(fmt::format("operation {} fails, fault {}, variant {}", at,
                                 static_cast<int>(fault), variant));
        MemoryFileSystem files = base_.after_kill();
        files.fail_at(at, fault);
        const auto results = write(files, seed() * 65537 + variant * 101 + at);
        last = std::max(last, files.operations());
        files.stop_failing();
        expect_only(files, results[0] ? new_ : old_);
        // A rank that could not write is the publisher's reason at once, not after a time.
        if (!results[0] && results[0].error().code != Errc::kIo) {
          ++told;
          EXPECT_EQ(results[0].error().code, Errc::kAborted) << results[0].error().message;
          EXPECT_NE(results[0].error().message.find("could not write its share: cannot"),
                    std::string::npos)
              << results[0].error().message;
        }
        for (const auto& result : results) {
          EXPECT_FALSE(!result && results[0].has_value()) << result.error().message;
        }
        ASSERT_TRUE(Directory(files, kFolder).prepare());
        const SampleSave next = save_of(3, 99);
        ASSERT_TRUE(write_in_order(files, next));
        expect_only(files, next);
        EXPECT_EQ(temporaries(files), 0u);
        if (HasFailure()) return;
      }
    }
    EXPECT_GT(last, 40u);
    EXPECT_GT(told, 20u);
  }
}

// A disk with room for bytes, but not for one more file.
class DiskWithoutInodes final : public test::PlainDisk {
 public:
  using PlainDisk::PlainDisk;
  Result<std::unique_ptr<WritableFile>> create_file(const std::string& path) override {
    return make_error(Errc::kIo, "cannot create {}: No space left on device", path);
  }
};

// Whether rank 1 fails before, while or after rank 0 comes.
TEST_F(CheckpointWriter, ThePublisherLearnsAtOnceOfARankThatCanLeaveNoFile) {
  for (std::uint64_t variant = 0; variant < 50; ++variant) {
    SCOPED_TRACE(fmt::format("seed {}, variant {}", seed(), variant));
    MemoryFileSystem files = base_.after_kill();
    std::vector<std::function<void(Turns::Process&)>> writers;
    for (Rank rank = 0; rank < 2; ++rank) {
      writers.push_back([&, rank](Turns::Process& process) {
        SampleSave save = new_;
        save.world_size = 2;
        if (rank == 0 && variant == 0) process.pass(std::chrono::seconds(1));
        DiskWithoutInodes full(process);
        FileSystem& disk = rank == 1 ? static_cast<FileSystem&>(full) : process;
        const auto written = write_rank(disk, save, rank, options_of(process));
        ASSERT_FALSE(written);
        EXPECT_EQ(written.error().code, rank == 1 ? Errc::kIo : Errc::kAborted)
            << written.error().message;
        EXPECT_LT(process.now() - TimePoint{}, std::chrono::seconds(2));
      });
    }
    Turns(files, seed() + variant).run(writers);
    expect_only(files, old_);
    EXPECT_TRUE(Directory(files, kFolder).remove_unfinished(new_.step).empty());
    EXPECT_EQ(temporaries(files), 0u);
    if (HasFailure()) return;
  }
}

// A rank whose node is gone: its part never comes.
TEST_F(CheckpointWriter, ThePublisherGivesUpWhenNothingComesAnyMore) {
  MemoryFileSystem files = base_.after_kill();
  std::vector<std::function<void(Turns::Process&)>> writers = {
      [&](Turns::Process& process) {
        const TimePoint begin = process.now();
        auto written = write_rank(process, new_, 0, options_of(process));
        ASSERT_FALSE(written);
        EXPECT_EQ(written.error().code, Errc::kTimeout);
        EXPECT_NE(written.error().message.find("1 of 3 ranks"), std::string::npos)
            << written.error().message;
        EXPECT_NE(written.error().message.find("rank 2"), std::string::npos)
            << written.error().message;
        EXPECT_GE(process.now() - begin, std::chrono::seconds(10));
        EXPECT_LT(process.now() - begin, std::chrono::seconds(12));
      },
      [&](Turns::Process& process) {
        EXPECT_TRUE(write_rank(process, new_, 1, options_of(process)));
      }};
  Turns(files, seed()).run(writers);
  expect_only(files, old_);
  EXPECT_EQ(temporaries(files), 0u);
}

// One that is slow, but goes on, is waited for: 30 times as long as the time to give up.
TEST_F(CheckpointWriter, ThePublisherWaitsForASlowOneThatGoesOn) {
  MemoryFileSystem files = base_.after_kill();
  new_.elements = 1 << 18;
  std::vector<std::function<void(Turns::Process&)>> writers;
  TimePoint end;
  for (Rank rank = 0; rank < kWorld; ++rank) {
    writers.push_back([&, rank](Turns::Process& process) {
      SampleSave save = new_;
      if (rank == 2) save.bytes_per_second = 4096;
      auto written = write_rank(process, save, rank, options_of(process));
      EXPECT_TRUE(written) << written.error().message;
      end = std::max(end, process.now());
    });
  }
  Turns(files, seed()).run(writers);
  expect_only(files, new_);
  EXPECT_GT(end - TimePoint{}, std::chrono::seconds(200));
}

TEST_F(CheckpointWriter, ACancelledSaveIsCleanedUp) {
  for (const Rank cancelled : {0, 1}) {
    MemoryFileSystem files = base_.after_kill();
    std::vector<std::function<void(Turns::Process&)>> writers;
    for (Rank rank = 0; rank < kWorld; ++rank) {
      writers.push_back([&, rank](Turns::Process& process) {
        WriterOptions options = options_of(process);
        int asked = 0;
        if (rank == cancelled) options.cancelled = [asked]() mutable { return ++asked > 2; };
        auto written = write_rank(process, new_, rank, options);
        if (rank == cancelled || rank == 0) {
          ASSERT_FALSE(written);
          EXPECT_EQ(written.error().code, Errc::kAborted) << written.error().message;
        }
      });
    }
    Turns(files, seed() + static_cast<std::uint64_t>(cancelled)).run(writers);
    expect_only(files, old_);
    EXPECT_TRUE(Directory(files, kFolder).remove_unfinished(new_.step).empty());
    EXPECT_EQ(temporaries(files), 0u);
  }
}

TEST_F(CheckpointWriter, ResumesAfterItsOwnSuccess) {
  ASSERT_TRUE(write_in_order(base_, new_));
  auto again = write_rank(base_, new_, 0, {});
  ASSERT_TRUE(again);
  EXPECT_EQ(again->path, "a/b/step-0000000002");
  EXPECT_EQ(base_.link_target("a/b/latest"), "step-0000000002");
  EXPECT_EQ(Directory(base_, kFolder).list()->size(), 2u);
}

}  // namespace
}  // namespace ddp::checkpoint
