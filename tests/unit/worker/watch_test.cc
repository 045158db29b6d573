#include "worker/transport/watch.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/check.h"
#include "common/base/errc.h"
#include "tests/support/inproc.h"
#include "tests/support/process.h"

// Ranks are processes that wait; some of them are killed, stopped or leave.
namespace ddp::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::wait_until;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr milliseconds kPatience = seconds(60);

// What a rank tells the test, in memory that both see.
struct Account {
  std::atomic<int> present{0};
  std::atomic<int> told{0};  // The outcome below is written.
  int code = 0;
  Rank suspect = -1;
  char text[512] = {};
  std::atomic<std::uint64_t> steps{0};
  std::atomic<int> order{0};  // What the test wants of the rank; for bodies that ask.
};

// A world of processes. Each watches and then runs the body, which by default waits until the round
// is aborted.
class Ranks {
 public:
  using Body = std::function<void(Transport&, Account&)>;

  explicit Ranks(const std::vector<int>& nodes, WatchOptions options = {},
                 const Body& body = wait_for_abort)
      : size_(Topology(nodes, 0).world_size()) {
    void* memory = ::mmap(nullptr, sizeof(Account) * static_cast<std::size_t>(size_),
                          PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    DDP_CHECK(memory != MAP_FAILED);
    accounts_ = static_cast<Account*>(memory);
    for (Rank rank = 0; rank < size_; ++rank) new (&account(rank)) Account;
    for (const int size : nodes) segments.push_back(std::move(test::make_segment(size, 0)).value());
    auto transports = test::make_inproc_transports(nodes, 0, segments);
    for (Rank rank = 0; rank < size_; ++rank) {
      const pid_t child = ::fork();
      DDP_CHECK(child >= 0, "fork failed");
      if (child == 0) {
        auto own = std::move(transports[static_cast<std::size_t>(rank)]);
        transports.clear();
        own->start_watch(options);
        account(rank).present = 1;
        body(*own, account(rank));
        own.reset();
        ::_exit(0);
      }
      pids_.push_back(child);
    }
  }
  ~Ranks() {
    for (Rank rank = 0; rank < size_; ++rank) {
      kill(rank, SIGKILL);
      reap(rank);
    }
    ::munmap(accounts_, sizeof(Account) * static_cast<std::size_t>(size_));
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  static void wait_for_abort(Transport& transport, Account& account) {
    note(transport.drive(Clock::now() + kPatience, [] { return Advance::kBlocked; }), account);
  }
  static void note(const Outcome& outcome, Account& account) {
    DDP_CHECK(outcome.has_value());
    account.code = outcome->code.value();
    account.suspect = outcome->suspect;
    std::strncpy(account.text, outcome->text.c_str(), sizeof(account.text) - 1);
    account.told = 1;
  }

  Account& account(Rank rank) { return accounts_[rank]; }
  int size() const { return size_; }
  void kill(Rank rank, int signal) {
    if (pids_[static_cast<std::size_t>(rank)] > 0)
      ::kill(pids_[static_cast<std::size_t>(rank)], signal);
  }
  void stop(Rank rank) {
    kill(rank, SIGSTOP);
    int status = 0;
    ::waitpid(pids_[static_cast<std::size_t>(rank)], &status, WUNTRACED);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  // Exit status, or 128 + the signal.
  int reap(Rank rank) {
    pid_t& pid = pids_[static_cast<std::size_t>(rank)];
    if (pid == 0) return -1;
    int status = 0;
    ::waitpid(pid, &status, 0);
    pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  bool all_present() {
    return wait_until([&] {
      for (Rank rank = 0; rank < size_; ++rank) {
        if (account(rank).present == 0) return false;
      }
      return true;
    });
  }
  bool has_word(Rank rank) {
    return wait_until([&] { return account(rank).told != 0; });
  }
  // Every rank but these gets the code and one of the suspects.
  void expect_all_but(const std::vector<Rank>& gone, Errc code) {
    for (Rank rank = 0; rank < size_; ++rank) {
      if (std::find(gone.begin(), gone.end(), rank) != gone.end()) continue;
      ASSERT_TRUE(has_word(rank)) << "rank " << rank << " waits on";
      EXPECT_EQ(account(rank).code, static_cast<int>(code)) << account(rank).text;
      EXPECT_THAT(gone, ::testing::Contains(account(rank).suspect)) << account(rank).text;
    }
  }
  bool any_word() {
    for (Rank rank = 0; rank < size_; ++rank) {
      if (account(rank).told != 0) return true;
    }
    return false;
  }

  std::vector<std::shared_ptr<Segment>> segments;  // By node.

 private:
  int size_;
  Account* accounts_ = nullptr;
  std::vector<pid_t> pids_;
};

const std::vector<std::vector<int>> kWorlds{{2}, {4}, {2, 2}, {1, 1, 1, 1}, {2, 1, 2}};

TEST(Watch, EverySurvivorLearnsWhoDied) {
  for (const auto& nodes : kWorlds) {
    for (Rank victim = 0; victim < Topology(nodes, 0).world_size(); ++victim) {
      Ranks ranks(nodes);
      ASSERT_TRUE(ranks.all_present());
      ranks.kill(victim, SIGKILL);
      ranks.expect_all_but({victim}, Errc::kPeerLost);
    }
  }
}

// The kernel takes long to give the memory back, and the end of a connection comes after that.
TEST(Watch, ADeathIsSeenWhateverTheMemoryOfTheDead) {
  Ranks ranks({3}, {}, [](Transport& transport, Account& account) {
    constexpr std::size_t kResident = std::size_t{512} << 20;
    void* memory = nullptr;
    if (transport.topology().rank() == 1) {
      memory = ::mmap(nullptr, kResident, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
      DDP_CHECK(memory != MAP_FAILED);
    }
    account.order = 1;
    Ranks::wait_for_abort(transport, account);
  });
  ASSERT_TRUE(wait_until([&] { return ranks.account(1).order != 0; }));
  ASSERT_TRUE(ranks.all_present());
  ranks.kill(1, SIGKILL);
  ranks.expect_all_but({1}, Errc::kPeerLost);
  EXPECT_STREQ(ranks.account(0).text, "rank 1 died");
}

TEST(Watch, WithoutTheSystemCallItPolls) {
  WatchOptions options;
  options.force_polling = true;
  Ranks ranks({3}, options);
  ASSERT_TRUE(ranks.all_present());
  ranks.kill(2, SIGKILL);
  ranks.expect_all_but({2}, Errc::kPeerLost);
}

TEST(Watch, TwoDieAtOnce) {
  for (const auto& nodes : {std::vector<int>{4}, std::vector<int>{2, 2}}) {
    Ranks ranks(nodes);
    ASSERT_TRUE(ranks.all_present());
    ranks.kill(1, SIGKILL);
    ranks.kill(2, SIGKILL);
    ranks.expect_all_but({1, 2}, Errc::kPeerLost);
  }
}

TEST(Watch, MoreRanksThanOneCallCanWaitFor) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer leaves less address space than 140 regions take";
#endif
  Ranks ranks({140});
  ASSERT_TRUE(ranks.all_present());
  ranks.kill(5, SIGKILL);
  ranks.expect_all_but({5}, Errc::kPeerLost);
}

TEST(Watch, AStoppedRankIsNamed) {
  WatchOptions options;
  options.stall_timeout = Duration(300);
  for (const auto& nodes : kWorlds) {
    const Rank victim = Topology(nodes, 0).world_size() - 1;
    Ranks ranks(nodes, options);
    ASSERT_TRUE(ranks.all_present());
    ranks.stop(victim);
    ranks.expect_all_but({victim}, Errc::kTimeout);
    EXPECT_THAT(ranks.account(0).text,
                AnyOf(StartsWith("rank " + std::to_string(victim) + " has not run for "),
                      StartsWith("nothing was heard from rank " + std::to_string(victim))));
    // Awake again, it gets the same cause instead of the deadline of its operation.
    ranks.kill(victim, SIGCONT);
    ASSERT_TRUE(ranks.has_word(victim));
    EXPECT_EQ(ranks.account(victim).suspect, victim);
  }
}

TEST(Watch, ARankThatWasStoppedTouchesNothingAfterwards) {
  WatchOptions options;
  options.stall_timeout = Duration(300);
  Ranks ranks({2}, options, [](Transport& transport, Account& account) {
    // A step stands for a write to the memory of another rank.
    const auto step = [&] {
      ++account.steps;
      std::this_thread::sleep_for(milliseconds(1));  // sleep: leaves the CPU to the other rank
      return Advance::kMoved;
    };
    Ranks::note(transport.drive(Clock::now() + kPatience, step), account);
  });
  ASSERT_TRUE(ranks.all_present());
  ranks.stop(1);
  ASSERT_TRUE(ranks.has_word(0));
  const std::uint64_t before = ranks.account(1).steps;
  ranks.kill(1, SIGCONT);
  ASSERT_TRUE(ranks.has_word(1));
  // It may have been stopped between the look at the word and the step.
  EXPECT_LE(ranks.account(1).steps, before + 1);
}

TEST(Watch, WhoeverWasStoppedAccusesNobody) {
  WatchOptions options;
  options.stall_timeout = Duration(400);
  for (const auto& nodes : {std::vector<int>{3}, std::vector<int>{1, 1, 1}}) {
    Ranks ranks(nodes, options);
    ASSERT_TRUE(ranks.all_present());
    for (Rank rank = 0; rank < 3; ++rank) ranks.stop(rank);
    std::this_thread::sleep_for(milliseconds(900));  // sleep: longer than the timeout
    for (Rank rank = 0; rank < 3; ++rank) ranks.kill(rank, SIGCONT);
    std::this_thread::sleep_for(milliseconds(600));  // sleep: an accusation would come by now
    EXPECT_FALSE(ranks.any_word()) << ranks.account(0).text << ranks.account(1).text;
  }
}

TEST(Watch, ZeroTurnsTheTimeoutOff) {
  WatchOptions options;
  options.stall_timeout = Duration(0);
  Ranks ranks({1, 1}, options);
  ASSERT_TRUE(ranks.all_present());
  ranks.stop(1);
  std::this_thread::sleep_for(milliseconds(800));  // sleep: many beats
  EXPECT_FALSE(ranks.any_word());
}

// Leaves when the test says so; the others wait.
void leave_when_told(Transport& transport, Account& account) {
  const auto step = [&] { return account.order == 0 ? Advance::kBlocked : Advance::kDone; };
  if (const auto outcome = transport.drive(Clock::now() + kPatience, step)) {
    Ranks::note(outcome, account);
  }
}

TEST(Watch, DepartureIsNoDeath) {
  WatchOptions options;
  options.stall_timeout = Duration(200);
  for (const auto& nodes : kWorlds) {
    Ranks ranks(nodes, options, leave_when_told);
    ASSERT_TRUE(ranks.all_present());
    ranks.account(1).order = 1;
    EXPECT_EQ(ranks.reap(1), 0);
    std::this_thread::sleep_for(milliseconds(500));  // sleep: an accusation would come by now
    EXPECT_FALSE(ranks.any_word()) << ranks.account(0).text;
    // The others still watch over one another.
    if (nodes == std::vector<int>{2}) continue;
    ranks.kill(0, SIGKILL);
    ranks.expect_all_but({0, 1}, Errc::kPeerLost);
  }
}

// Raises the abort and ends at once, when told.
TEST(Watch, AnAbortReachesTheOtherNodesAlthoughItsRankEnds) {
  const auto body = [](Transport& transport, Account& account) {
    leave_when_told(transport, account);
    if (account.order == 0) return;
    transport.raise_abort({Errc::kMismatch, 2, "because"});
    ::raise(SIGKILL);  // Not _exit(): ThreadSanitizer then misses the joins that are never made.
  };
  for (int turn = 0; turn < 20; ++turn) {
    Ranks ranks({1, 2, 1}, {}, body);
    ASSERT_TRUE(ranks.all_present());
    const Rank raiser = turn % 4 == 2 ? 0 : turn % 4;  // Rank 2 has no lane.
    ranks.account(raiser).order = 1;
    EXPECT_EQ(ranks.reap(raiser), 128 + SIGKILL);
    for (Rank rank = 0; rank < 4; ++rank) {
      if (rank == raiser) continue;
      ASSERT_TRUE(ranks.has_word(rank));
      EXPECT_STREQ(ranks.account(rank).text, "because") << "rank " << rank << " of " << raiser;
      EXPECT_EQ(ranks.account(rank).code, static_cast<int>(Errc::kMismatch));
    }
  }
}

// As the agent does it: somebody outside the group writes the word, while the ranks of its node are
// in no operation.
TEST(Watch, AWordRaisedFromOutsideReachesTheOtherNodes) {
  Ranks ranks({2, 1}, {}, [](Transport& transport, Account& account) {
    while (transport.topology().node() == 0) ::pause();
    Ranks::wait_for_abort(transport, account);
  });
  ASSERT_TRUE(ranks.all_present());
  ranks.segments[0]->raise_abort({Errc::kAborted, 1, "worker killed by signal 9"});
  ASSERT_TRUE(ranks.has_word(2));
  EXPECT_STREQ(ranks.account(2).text, "worker killed by signal 9");
}

TEST(Watch, ThreadsOfOneProcessComeAndGo) {
  const auto segment = std::move(test::make_segment(3, 0)).value();
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<std::unique_ptr<Watch>> watches;
    for (Rank rank = 0; rank < 3; ++rank) {
      watches.push_back(std::make_unique<Watch>(Topology({3}, rank), segment,
                                                std::vector<ControlPeer>{}, WatchOptions{}));
      EXPECT_EQ(look_at(segment->lifeline(rank)).kind, LifeSign::Kind::kPresent);
    }
    watches.erase(watches.begin() + 1);
    EXPECT_EQ(look_at(segment->lifeline(1)).kind, LifeSign::Kind::kAbsent);
  }
  EXPECT_FALSE(segment->aborted());
}

// A rank may make a group before the one it replaces is gone.
TEST(Watch, ASecondWatchOfARankTakesOver) {
  const auto segment = std::move(test::make_segment(1, 0)).value();
  const auto watch = [&] {
    return std::make_unique<Watch>(Topology({1}, 0), segment, std::vector<ControlPeer>{},
                                   WatchOptions{});
  };
  auto first = watch();
  const auto second = watch();
  first.reset();
  EXPECT_TRUE(
      wait_until([&] { return look_at(segment->lifeline(0)).kind == LifeSign::Kind::kPresent; }));
}

TEST(ControlLinks, OtherBytesAreAnError) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  UniqueFd other(fds[1]);
  std::vector<ControlPeer> peers;
  peers.push_back({UniqueFd(fds[0]), 7, 3});
  ControlLinks links(std::move(peers));
  EXPECT_FALSE(links.listen(Duration(0), Duration(0)));
  ASSERT_EQ(::write(other.get(), "GET / HTTP/1.0", 14), 14);
  const Outcome failure = links.listen(Duration(0), Duration(0));
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code, Errc::kProtocol);
  EXPECT_THAT(failure->text, HasSubstr("rank 7 on node 3 sent bytes"));
}

// The word of another rank may be late because this machine is busy, and then so is the watcher.
TEST(ControlLinks, ADeathIsCertainOnlyToAWatcherThatHasRun) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  UniqueFd other(fds[1]);
  std::vector<ControlPeer> peers;
  peers.push_back({UniqueFd(fds[0]), 7, 3});
  ControlLinks links(std::move(peers));
  other.reset();
  EXPECT_FALSE(links.listen(Duration(0), Duration(0)));
  EXPECT_TRUE(links.waits_for_explanation());
  // Such a pause in place of 10 ms.
  EXPECT_FALSE(links.listen(Duration(10'000), Duration(0)));
  Outcome failure;
  for (int i = 0; i < 8; ++i) {
    EXPECT_FALSE(failure) << i;
    failure = links.listen(Duration(10), Duration(0));
  }
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code, Errc::kPeerLost);
  EXPECT_EQ(failure->text, "rank 7 on node 3 is gone: it closed the connection");
}

// In a job of many nodes, most peers send no heartbeats.
TEST(ControlLinks, OnlyThoseThatBeatAreMissed) {
  for (const bool beats : {false, true}) {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    std::vector<ControlPeer> peers;
    peers.push_back({UniqueFd(fds[0]), 7, 3, beats});
    ControlLinks links(std::move(peers));
    peers.clear();
    peers.push_back({UniqueFd(fds[1]), 0, 0, beats});
    auto other = std::make_unique<ControlLinks>(std::move(peers));
    other->introduce("node7");
    other->beat(Duration(50));
    EXPECT_FALSE(links.listen(Duration(0), Duration(500)));
    const Outcome silent = links.listen(Duration(10'000), Duration(500));
    EXPECT_EQ(silent.has_value(), beats);
    if (beats) continue;
    other.reset();
    Outcome failure;
    for (int i = 0; i < 10 && !failure; ++i) failure = links.listen(Duration(20), Duration(500));
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->code, Errc::kPeerLost);
  }
}

TEST(ControlLinks, APeerThatHasIntroducedItselfIsNamedWithItsProcess) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  std::vector<ControlPeer> peers;
  peers.push_back({UniqueFd(fds[0]), 7, 3});
  ControlLinks links(std::move(peers));
  {
    peers.clear();
    peers.push_back({UniqueFd(fds[1]), 0, 0});
    ControlLinks other(std::move(peers));
    other.introduce("node7");
    other.beat(Duration(50));
  }
  Outcome failure;
  for (int i = 0; i < 10 && !failure; ++i) failure = links.listen(Duration(20), Duration(0));
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->text, "rank 7 on node 3 is gone: it closed the connection (pid " +
                               std::to_string(::getpid()) + " on node7)");
}

// Frames are cut anywhere, and a text of any length arrives.
TEST(ControlLinks, FramesInPieces) {
  int here[2];
  int there[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, here), 0);
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, there), 0);
  std::vector<ControlPeer> peers;
  peers.push_back({UniqueFd(here[0]), 1, 1});
  ControlLinks sender(std::move(peers));
  sender.beat(Duration(50));
  sender.tell_abort({Errc::kTimeout, 4, std::string(900, 'x')});
  sender.tell_leave();  // Too late.
  peers.clear();
  peers.push_back({UniqueFd(there[0]), 0, 0});
  ControlLinks receiver(std::move(peers));
  const UniqueFd from(here[1]);
  const UniqueFd to(there[1]);
  char byte = 0;
  Outcome failure;
  while (!failure && ::recv(from.get(), &byte, 1, MSG_DONTWAIT) == 1) {
    ASSERT_EQ(::write(to.get(), &byte, 1), 1);
    failure = receiver.listen(Duration(0), Duration(0));
  }
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code, Errc::kTimeout);
  EXPECT_EQ(failure->suspect, 4);
  EXPECT_EQ(failure->text, std::string(500, 'x'));
  EXPECT_EQ(::recv(from.get(), &byte, 1, MSG_DONTWAIT), -1);
}

}  // namespace
}  // namespace ddp::transport
