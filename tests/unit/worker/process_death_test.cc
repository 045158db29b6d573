#include <signal.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/errc.h"
#include "common/wire/shm_layout.h"
#include "tests/support/inproc.h"
#include "tests/support/process.h"
#include "tests/support/worker_world.h"

// Ranks are processes; one of them is killed at a random moment in a stream of operations.
namespace ddp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kSurvived = 7;  // Exit status of a rank whose group failed as it should.
constexpr int kWrongSum = 8;

// Sums until the group fails; the failure's code becomes the exit status.
int sum_until_failure(ProcessGroup& group, std::size_t count) {
  std::vector<float> values(count);
  try {
    for (;;) {
      std::fill(values.begin(), values.end(), 1.0F);
      group.all_reduce({values.data(), count, DType::kF32}, ReduceOp::kSum)->wait();
      if (values.front() != static_cast<float>(group.size()) || values.back() != values.front())
        return kWrongSum;
    }
  } catch (const CollectiveError&) {
    return kSurvived;
  }
}

// A number that children see too.
class SharedCount {
 public:
  SharedCount()
      : memory_(::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    DDP_CHECK(memory_ != MAP_FAILED);
    count_ = new (memory_) std::atomic<int>(0);
  }
  ~SharedCount() { ::munmap(memory_, sizeof(std::atomic<int>)); }
  SharedCount(const SharedCount&) = delete;
  SharedCount& operator=(const SharedCount&) = delete;
  void add() { ++*count_; }
  int get() const { return *count_; }

 private:
  void* memory_;
  std::atomic<int>* count_;
};

// Shared memory as the agent makes it.
struct AgentMemory {
  int fd = -1;
  wire::ShmHeader* header = nullptr;

  AgentMemory(int local_size, Round round) {
    fd = ::memfd_create("ddp-test", MFD_CLOEXEC);
    const std::size_t bytes = wire::shm_bytes(local_size);
    DDP_CHECK(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) == 0);
    void* page = ::mmap(nullptr, wire::kShmHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    DDP_CHECK(page != MAP_FAILED);
    header = new (page) wire::ShmHeader;
    header->size_bytes = bytes;
    header->local_size = local_size;
    header->round = round;
  }
  ~AgentMemory() {
    ::munmap(header, wire::kShmHeaderBytes);
    ::close(fd);
  }
  AgentMemory(const AgentMemory&) = delete;
  AgentMemory& operator=(const AgentMemory&) = delete;

  void raise_abort(Rank rank, const char* reason) {
    std::uint32_t unclaimed = 0;
    if (!header->abort_claim.compare_exchange_strong(unclaimed, 1)) return;
    header->abort_rank = rank;
    std::strncpy(header->abort_reason, reason, sizeof(header->abort_reason) - 1);
    header->abort = 1;
  }
};

TEST(ProcessDeath, SurvivorsOfOneNodeLearnItFromTheAgent) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (int turn = 0; turn < 12; ++turn) {
    AgentMemory memory(3, 4);
    auto segment = std::move(test::attach_segment(memory.fd, 3, 4)).value();
    const std::size_t count = turn % 2 == 0 ? 500 : 400'000;
    const auto children =
        test::fork_ranks({3}, [&](const auto& group) { return sum_until_failure(*group, count); },
                         seconds(60), {segment});
    std::this_thread::sleep_for(milliseconds(random() % 40));  // sleep: until a random moment
    const std::size_t victim = random() % 3;
    ::kill(children[victim], SIGKILL);
    EXPECT_EQ(test::reap(children[victim], seconds(10)), 128 + SIGKILL);
    memory.raise_abort(static_cast<Rank>(victim), "worker killed by signal 9");
    for (std::size_t rank = 0; rank < children.size(); ++rank) {
      if (rank != victim) {
        EXPECT_EQ(test::reap(children[rank], seconds(10)), kSurvived)
            << "rank " << rank << " turn " << turn;
      }
    }
  }
}

TEST(ProcessDeath, TheCauseIsTheAgents) {
  AgentMemory memory(2, 0);
  auto segment = std::move(test::attach_segment(memory.fd, 2, 0)).value();
  memory.raise_abort(1, "worker killed by signal 9");
  const auto children = test::fork_ranks(
      {2},
      [](const auto& group) {
        try {
          group->barrier()->wait();
        } catch (const CollectiveError& error) {
          const bool right = error.code == Errc::kAborted && error.suspect_rank == 1 &&
                             std::string(error.what()) == "worker killed by signal 9";
          return right ? kSurvived : 1;
        }
        return 0;
      },
      seconds(60), {segment});
  for (const pid_t child : children) EXPECT_EQ(test::reap(child, seconds(10)), kSurvived);
}

// Body of a rank that, when all are there, waits for a barrier that the victim never enters,
// because it sends itself a signal. Exits with kSurvived if it fails with this code and names the
// victim.
std::function<int(const std::shared_ptr<ProcessGroup>&)> lose(Rank victim, int signal, Errc code) {
  return [=](const std::shared_ptr<ProcessGroup>& group) {
    try {
      // A rank may still be in it when the victim is through.
      group->barrier()->wait();
      if (group->rank() == victim) ::raise(signal);
      group->barrier()->wait();
    } catch (const CollectiveError& error) {
      if (error.code == code && error.suspect_rank == victim) return kSurvived;
      std::fprintf(stderr, "rank %d: suspect %d: %s\n", group->rank(), error.suspect_rank,
                   error.what());
    }
    return 1;
  };
}

const std::vector<std::vector<int>> kWorlds{{2}, {4}, {2, 2}, {1, 1, 1, 1}};

TEST(ProcessDeath, EverySurvivorNamesTheDeadWithoutAnAgent) {
  for (const auto& nodes : kWorlds) {
    const Rank last = test::world_size_of(nodes) - 1;
    for (const Rank victim : {0, last}) {
      const auto children = test::fork_ranks(nodes, lose(victim, SIGKILL, Errc::kPeerLost));
      for (Rank rank = 0; rank <= last; ++rank) {
        EXPECT_EQ(test::reap(children[static_cast<std::size_t>(rank)], seconds(20)),
                  rank == victim ? 128 + SIGKILL : kSurvived)
            << "rank " << rank;
      }
    }
  }
}

// Also by itself, once it runs again.
TEST(ProcessDeath, EverySurvivorNamesTheStopped) {
  ::setenv("DDP_STALL_TIMEOUT_MS", "2000", 1);
  for (const auto& nodes : kWorlds) {
    const Rank victim = test::world_size_of(nodes) - 1;
    const auto children = test::fork_ranks(nodes, lose(victim, SIGSTOP, Errc::kTimeout));
    for (Rank rank = 0; rank < victim; ++rank) {
      EXPECT_EQ(test::reap(children[static_cast<std::size_t>(rank)], seconds(20)), kSurvived)
          << "rank " << rank;
    }
    const pid_t stopped = children[static_cast<std::size_t>(victim)];
    ::kill(stopped, SIGCONT);
    EXPECT_EQ(test::reap(stopped, seconds(20)), kSurvived);
  }
  ::unsetenv("DDP_STALL_TIMEOUT_MS");
}

// The watch belongs to the round: a group within the group fails although the dead is not in it.
TEST(ProcessDeath, SubGroupsFailWithTheRound) {
  const auto children = test::fork_ranks({3}, [](const std::shared_ptr<ProcessGroup>& world) {
    const auto pair = world->new_group(std::array<Rank, 2>{0, 1});
    try {
      world->barrier()->wait();
      if (world->rank() == 2) ::raise(SIGKILL);
      // They wait for one another.
      (world->rank() == 1 ? world : pair)->barrier()->wait();
    } catch (const CollectiveError& error) {
      return error.code == Errc::kPeerLost && error.suspect_rank == 2 ? kSurvived : 1;
    }
    return 0;
  });
  EXPECT_EQ(test::reap(children[0], seconds(20)), kSurvived);
  EXPECT_EQ(test::reap(children[1], seconds(20)), kSurvived);
  EXPECT_EQ(test::reap(children[2], seconds(20)), 128 + SIGKILL);
}

// Somewhere in the middle of a stream of operations.
TEST(ProcessDeath, LinksTellEveryNode) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (const std::vector<int>& nodes : {std::vector<int>{1, 1}, std::vector<int>{1, 1, 1, 1},
                                        std::vector<int>{2, 2}, std::vector<int>{2, 1, 2}}) {
    for (int turn = 0; turn < 6; ++turn) {
      const std::size_t count = turn % 2 == 0 ? 50 : 300'000;
      SharedCount there;
      const auto children = test::fork_ranks(nodes, [&](const auto& group) {
        there.add();
        return sum_until_failure(*group, count);
      });
      // Whoever dies before it has made its group is missed by its agent alone.
      ASSERT_TRUE(
          test::wait_until([&] { return there.get() == static_cast<int>(children.size()); }));
      std::this_thread::sleep_for(milliseconds(random() % 40));  // sleep: until a random moment
      const std::size_t victim = random() % children.size();
      ::kill(children[victim], SIGKILL);
      for (std::size_t rank = 0; rank < children.size(); ++rank) {
        EXPECT_EQ(test::reap(children[rank], seconds(10)),
                  rank == victim ? 128 + SIGKILL : kSurvived)
            << "rank " << rank << " victim " << victim;
      }
    }
  }
}

TEST(ProcessDeath, TheNeighbourNamesTheDead) {
  const auto children = test::fork_ranks({1, 1}, [](const auto& group) {
    if (group->rank() == 1) ::raise(SIGKILL);
    std::vector<float> values(100'000, 1.0F);
    try {
      group
          ->all_reduce({values.data(), values.size(), DType::kF32}, ReduceOp::kSum,
                       {milliseconds(0), "bucket 3"})
          ->wait();
    } catch (const CollectiveError& error) {
      const std::string text = error.what();
      const bool right = error.code == Errc::kPeerLost && error.suspect_rank == 1 &&
                         text.find("rank 1 on node 1 is gone: ") != std::string::npos;
      if (!right) std::fprintf(stderr, "%s\n", text.c_str());
      return right ? kSurvived : 1;
    }
    return 0;
  });
  EXPECT_EQ(test::reap(children[0], seconds(10)), kSurvived);
  test::reap(children[1], seconds(10));
}

}  // namespace
}  // namespace ddp
