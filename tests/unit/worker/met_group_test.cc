// Groups of processes that meet at a store: who shares memory, and how they end.
#include "worker/runtime/met_group.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errc.h"
#include "common/process/abstract_socket.h"
#include "common/store/file_store.h"
#include "tests/support/forked_ranks.h"
#include "tests/support/other_user.h"
#include "tests/support/process.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temp_dir.h"
#include "worker/runtime/machine_name.h"
#include "worker/runtime/memory_handout.h"
#include "worker/runtime/shared_nodes.h"
#include "worker/transport/tcp.h"

namespace ddp::runtime {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): deadlines of tests.
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

MeetingCard card(const std::string& boot, const std::string& network = "1",
                 const std::string& agent_memory = "") {
  return {{boot, network, "0", ""}, agent_memory, "", 0, 0};
}

TEST(SharedNodes, NeighboursThatCanShareFormANode) {
  EXPECT_THAT(node_sizes_of({card("a"), card("a"), card("b"), card("b"), card("b")}),
              ElementsAre(2, 3));
  EXPECT_THAT(node_sizes_of({card("a"), card("b"), card("a")}), ElementsAre(1, 1, 1));
  EXPECT_THAT(node_sizes_of({card("a", "1"), card("a", "2")}), ElementsAre(1, 1));
  EXPECT_THAT(node_sizes_of({card("a", "1", "x"), card("a", "1", "x"), card("a", "1", "y")}),
              ElementsAre(2, 1));
}

TEST(SharedNodes, SayWhyRanksOfAMachineAreApart) {
  EXPECT_THAT(why_apart({card("a"), card("a"), card("b")}), IsEmpty());
  EXPECT_THAT(why_apart({card("a", "1"), card("a", "2")}),
              HasSubstr("ranks 0 and 1 cannot share memory: they are in different network"));
  EXPECT_THAT(why_apart({card("a", "1", "x"), card("a", "1", "y")}), HasSubstr("different agents"));
  EXPECT_THAT(why_apart({card("a"), card("b"), card("a")}),
              HasSubstr("number the ranks machine by machine"));
}

TEST(SharedNodes, ACardIsReadAsItWasWritten) {
  MeetingCard written{{"boot-1", "42", "1000", "6162"}, "8:77:0", "", 3, 4096};
  MeetingCard read;
  ASSERT_TRUE(read_card(to_line(written), read));
  EXPECT_EQ(read.machine, written.machine);
  EXPECT_EQ(read.agent_memory, written.agent_memory);
  EXPECT_EQ(read.family, "");
  EXPECT_EQ(read.region, 3);
  EXPECT_EQ(read.head, 4096u);
  EXPECT_FALSE(read_card("hello", read));
  EXPECT_FALSE(read_card("", read));
}

TEST(MachineName, IsTheSameInOneProcessAndDiffersByDdpVirtualNode) {
  const MachineName name = machine_name();
  EXPECT_EQ(machine_name_of(to_word(name)), name);
  EXPECT_EQ(name, machine_name());
  MachineName other = name;
  other.apart = "1";
  EXPECT_THAT(name.difference(other), HasSubstr("DDP_VIRTUAL_NODE"));
  other.user = "77";
  EXPECT_THAT(name.difference(other), HasSubstr("users"));
}

TEST(MemoryHandout, GivesTheDescriptorToWhoeverKnowsTheName) {
  auto handout = MemoryHandout::open(UniqueFd(::memfd_create("test", MFD_CLOEXEC)));
  ASSERT_TRUE(handout);
  EXPECT_EQ(handout->serve(0ms), 0);
  std::optional<Result<UniqueFd>> taken;
  std::thread taker([&] { taken.emplace(take_memory(handout->name(), Clock::now() + 10s)); });
  int served = 0;
  while (served == 0) served = handout->serve(1s);
  taker.join();
  EXPECT_EQ(served, 1);
  ASSERT_TRUE(*taken) << taken->error().message;
  const auto unknown = take_memory("ddp-memory-unknown", Clock::now() + 1s);
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, HasSubstr("cannot be reached"));
}

std::atomic<int> signals_seen{0};

TEST(MemoryHandout, ASignalWhileItIsFetchedHarmsNobody) {
  struct sigaction counts {};
  struct sigaction before {};
  counts.sa_handler = [](int) { ++signals_seen; };
  ASSERT_EQ(::sigaction(SIGUSR2, &counts, &before), 0);
  auto handout = MemoryHandout::open(UniqueFd(::memfd_create("test", MFD_CLOEXEC)));
  ASSERT_TRUE(handout);
  std::optional<Result<UniqueFd>> taken;
  std::atomic<bool> ended{false};
  std::thread taker([&] {
    taken.emplace(take_memory(handout->name(), Clock::now() + 60s));
    ended = true;
  });
  // The first may come before it waits, the others do not.
  for (int sent = 0; sent < 20 && !ended; ++sent) {
    const int seen = signals_seen;
    ASSERT_EQ(::pthread_kill(taker.native_handle(), SIGUSR2), 0);
    EXPECT_TRUE(test::wait_until([&] { return signals_seen > seen || ended; }));
  }
  while (!ended) handout->serve(10ms);
  taker.join();
  EXPECT_TRUE(*taken) << taken->error().message;
  EXPECT_EQ(::sigaction(SIGUSR2, &before, nullptr), 0);
}

TEST(MemoryHandout, AnotherUserGetsNothingAndHoldsUpNobody) {
  if (const char* why = test::no_other_user()) GTEST_SKIP() << why;
  auto handout = MemoryHandout::open(UniqueFd(::memfd_create("test", MFD_CLOEXEC)));
  ASSERT_TRUE(handout);
  int full[2];
  ASSERT_EQ(::pipe(full), 0);
  // As many as the kernel lets wait.
  test::OtherUser flood([&] {
    std::vector<UniqueFd> waiting;
    do {
      waiting.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    } while (waiting.size() < 1'000 &&
             connect_abstract(waiting.back().get(), handout->name()) == 0);
    if (::write(full[1], "x", 1) != 1) ::_exit(2);
    pollfd first{waiting.front().get(), POLLIN, 0};
    char byte = 0;
    ::poll(&first, 1, 20'000);
    ::_exit(::recv(first.fd, &byte, 1, 0) > 0 ? 1 : 0);
  });
  char byte = 0;
  ASSERT_EQ(::read(full[0], &byte, 1), 1);
  std::optional<Result<UniqueFd>> taken;
  std::thread taker([&] { taken.emplace(take_memory(handout->name(), Clock::now() + 20s)); });
  int served = 0;
  while (served == 0) served = handout->serve(1s);
  taker.join();
  EXPECT_EQ(served, 1);
  EXPECT_TRUE(*taken) << taken->error().message;
  EXPECT_EQ(flood.wait(), 0);
  for (const int fd : full) ::close(fd);
}

class MetGroupTest : public testing::Test {
 protected:
  std::shared_ptr<Group> meet(Rank rank, int size, const std::string& name,
                              ProcessGroupOptions options = {}) {
    Meeting meeting;
    // A file for each group: whoever opens one reads all of it.
    meeting.store = std::move(store::open_file_store(folder_.path() / name)).value();
    meeting.prefix = name;
    meeting.addresses = {"127.0.0.1"};
    options.stall_timeout = 30s;
    return make_met_group(rank, size, std::move(meeting), Clock::now() + 30s, options);
  }

  test::TempDir folder_;
};

bool sums(ProcessGroup& group) {
  double value = group.rank();
  group.all_reduce({&value, 1, DType::kF64}, ReduceOp::kSum)->wait();
  return value == group.size() * (group.size() - 1) / 2.0;
}

TEST_F(MetGroupTest, RanksOfOneMachineAreOneNode) {
  test::expect_all(test::start_ranks(3, [&](Rank rank) {
    const auto group = meet(rank, 3, "world");
    return group->nodes() == 1 && sums(*group) ? 0 : 1;
  }));
}

TEST_F(MetGroupTest, DdpVirtualNodeMakesThemSeveral) {
  test::expect_all(test::start_ranks(4, [&](Rank rank) {
    ::setenv("DDP_VIRTUAL_NODE", rank < 2 ? "a" : "b", 1);
    const auto group = meet(rank, 4, "world");
    return group->nodes() == 2 && sums(*group) ? 0 : 1;
  }));
}

// The memory of three ranks does not fit below the limit of one of them; its own does, twice.
TEST_F(MetGroupTest, ARankWithoutMemoryMakesThemUseTcp) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer needs more address space than the limit";
  test::expect_all(test::start_ranks(3, [&](Rank rank) {
    if (rank == 1) {
      const rlimit limit{std::uint64_t{40} << 30, std::uint64_t{40} << 30};
      ::setrlimit(RLIMIT_AS, &limit);
    }
    const auto group = meet(rank, 3, "world");
    if (group->nodes() != 3 || !sums(*group)) return 1;
    // Nor do those of a later group take themselves for neighbours in memory.
    const auto later = meet(rank, 3, "later");
    return later->nodes() == 3 && sums(*later) ? 0 : 2;
  }));
}

TEST_F(MetGroupTest, AGroupOfSomeOfThemUsesTheSameMemory) {
  test::expect_all(test::start_ranks(3, [&](Rank rank) {
    const auto world = meet(rank, 3, "world");
    if (rank == 1) return sums(*world) ? 0 : 1;
    const auto pair = meet(rank / 2, 2, "pair");
    const auto memory = world->allocate(4096);
    auto* const value = reinterpret_cast<double*>(memory.get());
    *value = 1;
    // Registered in the memory of the world, so also in that of the pair.
    pair->all_reduce({value, 1, DType::kF64}, ReduceOp::kSum, {})->wait();
    return *value == 2 && pair->nodes() == 1 && sums(*world) ? 0 : 1;
  }));
}

std::size_t entries_of(const char* folder) {
  const std::filesystem::directory_iterator all(folder);
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

int mappings_of_nodes() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("ddp-round") != line.npos;
  return count;
}

// The counts are exact, so what each group leaves is seen after few.
TEST_F(MetGroupTest, GroupsLeaveNothing) {
  test::expect_all(test::start_ranks(2, [&](Rank rank) {
    meet(rank, 2, "first").reset();
    const std::size_t descriptors = entries_of("/proc/self/fd");
    const std::size_t threads = entries_of("/proc/self/task");
    for (int i = 0; i < 50; ++i) {
      const auto group = meet(rank, 2, "group" + std::to_string(i));
      if (!sums(*group) || mappings_of_nodes() == 0) return 1;
    }
    if (mappings_of_nodes() != 0) return 2;
    if (entries_of("/proc/self/fd") != descriptors) return 3;
    // A thread may still be listed when it has been joined.
    return test::wait_until([&] { return entries_of("/proc/self/task") <= threads; }) ? 0 : 4;
  }));
}

TEST_F(MetGroupTest, ARankThatLeftIsNamedByThoseWhoWaitForIt) {
  const std::vector<pid_t> ranks = test::start_ranks(3, [&](Rank rank) {
    auto group = meet(rank, 3, "world");
    if (rank == 1) {
      group.reset();
      return 0;
    }
    try {
      sums(*group);
    } catch (const CollectiveError& error) {
      return error.code == Errc::kPeerLost && error.suspect_rank == 1 ? 0 : 2;
    }
    return 3;
  });
  test::expect_all(ranks);
}

TEST_F(MetGroupTest, AfterAnAbortTheSameProcessesMakeANewGroup) {
  test::expect_all(test::start_ranks(2, [&](Rank rank) {
    auto group = meet(rank, 2, "world");
    if (rank == 0) group->abort("to see what comes after");
    try {
      for (;;) sums(*group);
    } catch (const CollectiveError& error) {
      if (error.code != Errc::kAborted) return 2;
    }
    // The old group may still be there.
    const auto next = meet(rank, 2, "next");
    return next->nodes() == 1 && sums(*next) ? 0 : 3;
  }));
}

TEST_F(MetGroupTest, TheRanksThatDoNotComeAreNamed) {
  const std::vector<pid_t> ranks = test::start_ranks(
      3,
      [&](Rank rank) {
        Meeting meeting;
        meeting.store = std::move(store::open_file_store(folder_.path() / "store")).value();
        meeting.prefix = "world";
        meeting.group = "of the test";
        try {
          make_met_group(rank, 3, std::move(meeting), Clock::now() + 3s, {});
        } catch (const CollectiveError& error) {
          const std::string text = error.what();
          const bool is_named = text.find("of the test is not complete") != text.npos &&
                                text.find("rank 2 did not arrive") != text.npos;
          return error.code == Errc::kTimeout && error.suspect_rank == 2 && is_named ? 0 : 2;
        }
        return 3;
      },
      {2});
  test::expect_all(ranks);
}

}  // namespace
}  // namespace ddp::runtime
