// ddp::spawn: real processes, their group, and what happens to them when one fails.
#include "worker/runtime/spawn.h"

#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <future>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "common/store/tcp_store.h"
#include "tests/support/process.h"
#include "tests/support/process_table.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temp_dir.h"
#include "worker/runtime/process_group.h"

namespace ddp {
namespace {

using test::TempDir;
using test::wait_until;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Spawn : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string program = std::string(::getenv("DDP_BIN_DIR")) + "/ddp-rendezvous";
    ::setenv("DDP_RENDEZVOUS", program.c_str(), 1);
    mark_ = "SPAWN_TEST=" + std::to_string(::getpid()) + "." + std::to_string(++count_);
  }
  void write(const std::string& name, const std::string& text) const { folder_.write(name, text); }

  // What spawn throws; of another rank and status than -1 only if it threw.
  template <typename Function>
  static ProcessError failure_of(Function fn, int nprocs, const SpawnOptions& options = {}) {
    try {
      spawn(fn, nprocs, options);
    } catch (const ProcessError& error) {
      return error;
    }
    return {"no error", -1, -1, -1};
  }

  TempDir folder_;
  std::string mark_;
  static inline int count_ = 0;
};

TEST_F(Spawn, ChildrenAreAGroupInSharedMemoryWithAStore) {
  spawn(
      [this](Rank rank) {
        auto group = ProcessGroup::from_environment();
        double sum = rank + 1;
        group->all_reduce({&sum, 1, DType::kF64}, ReduceOp::kSum)->wait();
        // Only memory that all can reach is given out, if they are on one node.
        const bool shared = group->allocate(4096) != nullptr;
        auto store = connect_tcp_store(::getenv("MASTER_ADDR"), std::atoi(::getenv("MASTER_PORT")),
                                       std::chrono::seconds(10));
        const bool stored = store && (*store)->add("count", 1);
        group->barrier()->wait();
        const auto count = stored ? (*store)->add("count", 0) : Result<std::int64_t>(0);
        write(std::to_string(rank), std::to_string(group->size()) + " " + std::to_string(sum) +
                                        " " + std::to_string(shared) + " " +
                                        std::to_string(count ? *count : -1));
      },
      3);
  for (const char* rank : {"0", "1", "2"}) EXPECT_EQ(folder_.read(rank), "3 6.000000 1 3");
}

TEST_F(Spawn, WhatIsThereBeforeIsInEachChild) {
  int value = 41;
  spawn([&](Rank rank) { write(std::to_string(rank), std::to_string(value += rank)); }, 2);
  EXPECT_EQ(folder_.read("0") + folder_.read("1"), "4142");
  EXPECT_EQ(value, 41) << "a copy";
}

TEST_F(Spawn, TheFirstExceptionIsThrownWithItsRankAndEndsTheOthers) {
  const auto error = failure_of(
      [this](Rank rank) {
        write("pid." + std::to_string(rank), std::to_string(::getpid()));
        if (rank != 1) {
          for (;;) ::pause();
        }
        ASSERT_TRUE(wait_until(
            [this] { return !folder_.read("pid.0").empty() && !folder_.read("pid.2").empty(); }));
        throw std::runtime_error("no batch 17 in shard b");
      },
      3);
  EXPECT_EQ(error.rank, 1);
  EXPECT_EQ(error.exit_code, 1);
  EXPECT_EQ(error.signal, 0);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("process 1"), HasSubstr("no batch 17 in shard b")));
  for (const char* rank : {"0", "2"}) {
    const pid_t pid = std::stoi(folder_.read(std::string("pid.") + rank));
    EXPECT_NE(::kill(pid, 0), 0) << "it still runs";
  }
}

TEST_F(Spawn, AChildThatIsKilledOrLeavesIsNamed) {
  const auto killed = failure_of(
      [](Rank rank) {
        if (rank == 0) ::raise(SIGKILL);
      },
      2);
  EXPECT_EQ(killed.rank, 0);
  EXPECT_EQ(killed.signal, SIGKILL);
  EXPECT_THAT(killed.what(), HasSubstr("SIGKILL"));
  const auto left = failure_of(
      [](Rank rank) {
        if (rank == 1) ::_exit(7);
      },
      2);
  EXPECT_EQ(left.rank, 1);
  EXPECT_EQ(left.exit_code, 7);
}

TEST_F(Spawn, AChildThatDoesNotEndIsKilled) {
  SpawnOptions options;
  options.grace = std::chrono::milliseconds(50);
  const auto error = failure_of(
      [this](Rank rank) {
        if (rank == 0) {
          ::signal(SIGTERM, SIG_IGN);
          write("deaf", std::to_string(::getpid()));
          for (;;) ::pause();
        }
        ASSERT_TRUE(wait_until([this] { return !folder_.read("deaf").empty(); }));
        throw std::runtime_error("over");
      },
      2, options);
  EXPECT_EQ(error.rank, 1);
  EXPECT_NE(::kill(std::stoi(folder_.read("deaf")), 0), 0) << "it still runs";
}

TEST_F(Spawn, OneAfterTheOtherAndNothingIsLeft) {
  ::setenv("SPAWN_TEST", mark_.substr(mark_.find('=') + 1).c_str(), 1);
  for (int turn = 0; turn < 3; ++turn) {
    spawn([](Rank) { ProcessGroup::from_environment()->barrier()->wait(); }, 2);
  }
  ::unsetenv("SPAWN_TEST");
  EXPECT_THAT(test::processes_with(mark_), ::testing::IsEmpty()) << "a store was left";
}

TEST_F(Spawn, WhatCannotBeIsSaid) {
  EXPECT_THROW(spawn([](Rank) {}, 0), std::invalid_argument);
  EXPECT_THROW(spawn([](Rank) {}, 257), std::invalid_argument);
  ::setenv("DDP_RENDEZVOUS", "/no/such/program", 1);
  try {
    spawn([](Rank) {}, 1);
    ADD_FAILURE() << "without a store";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("/no/such/program"));
  }
  ::unsetenv("DDP_RENDEZVOUS");
}

// The last one, because of the sanitizer's thread.
TEST_F(Spawn, AProcessWithThreadsIsRefused) {
  std::promise<void> called;
  std::thread other([over = called.get_future()] { over.wait(); });
  try {
    spawn([](Rank) {}, 1);
    ADD_FAILURE() << "with two threads";
  } catch (const std::logic_error& error) {
    // ThreadSanitizer starts a thread of its own beside the first one of a program.
    EXPECT_THAT(error.what(), HasSubstr(test::kSanitized ? "threads" : "2 threads"));
  }
  called.set_value();
  other.join();
}

}  // namespace
}  // namespace ddp
