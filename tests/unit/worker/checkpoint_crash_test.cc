#include <cstdlib>

#include <gtest/gtest.h>

#include "tests/support/checkpoint_samples.h"
#include "tests/support/memory_file_system.h"

// A run is stopped at each of its disk operations, by a kill (the machine keeps running) or a power
// cut (unsynced data is dropped, torn or kept, changes of names happen in any combination). The
// checkpoint that is loaded afterwards must be complete, and never older than the last one that was
// reported as saved.
namespace ddp::checkpoint {
namespace {

using test::MemoryFileSystem;
using test::publish_sample;
using test::salt_of;

struct Progress {
  std::int64_t started = -1;       // Salt of the last save that began.
  std::int64_t acknowledged = -1;  // Salt of the last save that reported success.
};

// Steps 1, 2, 3, then 3 again (a resumed run), then 4; two are kept.
Progress train(MemoryFileSystem& files) {
  Progress run;
  Directory directory(files, "a/b");
  if (!directory.prepare()) return run;
  std::int64_t salt = 0;
  for (const std::int64_t step : {1, 2, 3, 3, 4}) {
    run.started = ++salt;
    if (publish_sample(files, directory, step, static_cast<std::uint64_t>(salt), 2)) {
      run.acknowledged = salt;
    }
  }
  return run;
}

// A new process on what was left.
void check_recovery(MemoryFileSystem& files, const Progress& run, const std::string& where) {
  Directory directory(files, "a/b");
  ValidSearch search(directory);
  auto found = test::next_valid(directory, search);
  ASSERT_TRUE(found) << where;
  // Not only the newest: nothing incomplete may be visible at all.
  while (test::next_valid(directory, search)->has_value()) continue;
  EXPECT_TRUE(search.skipped().empty()) << where << ": " << search.skipped()[0];
  const std::int64_t salt = salt_of(*found);
  EXPECT_GE(salt, run.acknowledged) << where << ": a saved checkpoint is lost";
  EXPECT_LE(salt, run.started) << where;
  if (found->has_value()) {
    const std::int64_t steps[] = {1, 2, 3, 3, 4};
    EXPECT_EQ((*found)->manifest.step, steps[salt - 1]) << where;
  }
  auto prepared = directory.prepare();
  ASSERT_TRUE(prepared) << where << ": " << prepared.error().message;
  for (const std::string& name : files.names("a/b")) {
    EXPECT_FALSE(name.starts_with(".tmp-")) << where << ": " << name;
  }
  ASSERT_TRUE(publish_sample(files, directory, 5, 100, 2)) << where;
  EXPECT_EQ(salt_of(*test::open_newest_valid(directory)), 100) << where;
}

std::size_t operations_of_a_run() {
  MemoryFileSystem files;
  EXPECT_EQ(train(files).acknowledged, 5);
  return files.operations();
}

TEST(CheckpointCrash, AKillAtAnyOperationLeavesACompleteCheckpoint) {
  const std::size_t count = operations_of_a_run();
  ASSERT_GT(count, 100u);
  for (std::size_t operation = 0; operation <= count; ++operation) {
    MemoryFileSystem files;
    files.fail_at(operation, MemoryFileSystem::Fault::kStopped);
    const Progress run = train(files);
    MemoryFileSystem after = files.after_kill();
    check_recovery(after, run, "killed at operation " + std::to_string(operation));
    if (HasFatalFailure()) return;
  }
}

TEST(CheckpointCrash, APowerCutAtAnyOperationLeavesACompleteCheckpoint) {
  const char* given = std::getenv("DDP_TEST_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 7;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const std::size_t count = operations_of_a_run();
  for (std::size_t operation = 0; operation <= count; ++operation) {
    MemoryFileSystem files;
    files.fail_at(operation, MemoryFileSystem::Fault::kStopped);
    const Progress run = train(files);
    for (std::uint64_t variant = 0; variant < 90; ++variant) {
      std::mt19937_64 dice(seed * 1000003 + operation * 1009 + variant);
      MemoryFileSystem after = files.after_power_cut(dice);
      check_recovery(after, run,
                     "power cut at operation " + std::to_string(operation) + ", variant " +
                         std::to_string(variant));
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace ddp::checkpoint
