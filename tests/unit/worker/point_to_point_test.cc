#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/mail_world.h"
#include "tests/support/temp_dir.h"

// Messages match their receives, whatever the placement of ranks and buffers and the order.
namespace ddp {
namespace {

using std::chrono::milliseconds;
using test::Data;
using test::floats;
using test::kPatience;
using test::mail_options;
using test::MailWorld;

class EveryWorld : public testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(Worlds, EveryWorld,
                         testing::Values(std::vector<int>{1}, std::vector<int>{2},
                                         std::vector<int>{3}, std::vector<int>{1, 1},
                                         std::vector<int>{2, 2}, std::vector<int>{1, 1, 1},
                                         std::vector<int>{2, 1}),
                         test::name_of_mail_world);

class MatchingOfTwoRanks : public testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(Worlds, MatchingOfTwoRanks,
                         testing::Values(std::vector<int>{2}, std::vector<int>{1, 1}),
                         test::name_of_mail_world);

// Itself included: all receives first, then all sends, of every size.
TEST_P(EveryWorld, AllPairsExchangeAtOnce) {
  MailWorld world(GetParam());
  for (const bool registered : {false, true}) {
    for (const std::size_t bytes : {0u, 1u, 8u, 4095u, 32769u, 300'001u, 1'048'577u}) {
      world.run([&](Rank self) {
        transport::Arena* arena = registered ? world.transport(self).arena().get() : nullptr;
        std::vector<Data> in;
        std::vector<Data> out;
        std::vector<WorkPtr> works;
        for (Rank peer = 0; peer < world.size(); ++peer) {
          in.emplace_back(bytes, arena);
          out.emplace_back(Data(bytes, arena).fill(self, peer, 3));
        }
        for (Rank peer = 0; peer < world.size(); ++peer)
          works.push_back(
              world[self].recv(in[static_cast<std::size_t>(peer)].buffer(), peer, 3, {}, 0));
        for (Rank peer = 0; peer < world.size(); ++peer)
          works.push_back(
              world[self].send(out[static_cast<std::size_t>(peer)].buffer(), peer, 3, {}, 1));
        for (const WorkPtr& work : works) work->wait();
        for (Rank peer = 0; peer < world.size(); ++peer) {
          EXPECT_EQ(in[static_cast<std::size_t>(peer)].wrong(peer, self, 3), -1)
              << "from " << peer << " to " << self << ", " << bytes << " bytes";
        }
      });
    }
  }
}

// Each sends to the next before it receives from the previous one: what is sent must be taken by
// ranks that wait for something else.
TEST_P(EveryWorld, RingOfBlockingSends) {
  MailWorld world(GetParam());
  for (const std::size_t bytes : {100u, 900'000u}) {
    world.run([&](Rank self) {
      const Rank next = (self + 1) % world.size();
      const Rank previous = (self + world.size() - 1) % world.size();
      if (next == self && bytes > runtime::kEagerBytes) return;  // Nobody else could take it.
      Data out(bytes);
      Data in(bytes);
      world[self].send(out.fill(self, next, 5).buffer(), next, 5, {}, 0)->wait();
      world[self].recv(in.buffer(), previous, 5, {}, 1)->wait();
      EXPECT_EQ(in.wrong(previous, self, 5), -1) << bytes;
    });
  }
}

// Receives in the opposite order of the sends, and messages of one tag in order.
TEST_P(EveryWorld, TagsOutOfOrder) {
  constexpr std::uint64_t kTags = 5;
  constexpr std::size_t kEach = 3;
  MailWorld world(GetParam());
  world.run([&](Rank self) {
    const Rank to = (self + 1) % world.size();
    const Rank from = (self + world.size() - 1) % world.size();
    transport::Arena* arena = world.transport(self).arena().get();
    std::vector<Data> out;
    std::vector<WorkPtr> works;
    out.reserve(kTags * kEach);
    for (std::uint64_t tag = 0; tag < kTags; ++tag) {
      for (std::size_t i = 0; i < kEach; ++i) {
        out.emplace_back(1000 + 40'000 * tag, tag % 2 == 0 ? arena : nullptr)
            .fill(self, to, 100 * tag + i);
        const std::uint64_t sent_tag = tag == 4 ? runtime::kInternalTags + 4 : tag;
        works.push_back(world[self].send(out.back().buffer(), to, sent_tag, {}, 0));
      }
    }
    for (std::uint64_t left = kTags; left > 0; --left) {
      const std::uint64_t tag = left - 1;
      for (std::size_t i = 0; i < kEach; ++i) {
        Data in(1000 + 40'000 * tag);
        const std::uint64_t sent_tag = tag == 4 ? runtime::kInternalTags + 4 : tag;
        world[self].recv(in.buffer(), from, sent_tag, {}, 0)->wait();
        EXPECT_EQ(in.wrong(from, self, 100 * tag + i), -1) << "tag " << tag << " message " << i;
      }
    }
    for (const WorkPtr& work : works) work->wait();
  });
}

// More small messages than a ring or a socket holds, before their receives.
TEST_P(EveryWorld, ManyInFlight) {
  constexpr int kMessages = 3000;
  MailWorld world(GetParam());
  world.run([&](Rank self) {
    const Rank to = (self + 1) % world.size();
    const Rank from = (self + world.size() - 1) % world.size();
    std::vector<WorkPtr> works;
    std::vector<std::vector<float>> out;
    out.reserve(kMessages);
    for (int i = 0; i < kMessages; ++i) {
      out.emplace_back(static_cast<std::size_t>(i % 200), static_cast<float>(i));
      works.push_back(world[self].send(floats(out.back()), to, 0, {}, 0));
    }
    std::vector<std::vector<float>> in;
    in.reserve(kMessages);
    for (int i = 0; i < kMessages; ++i) {
      in.emplace_back(static_cast<std::size_t>(i % 200));
      works.push_back(world[self].recv(floats(in.back()), from, 0, {}, 0));
    }
    for (const WorkPtr& work : works) work->wait();
    for (int i = 0; i < kMessages; ++i) {
      const std::vector<float>& got = in[static_cast<std::size_t>(i)];
      ASSERT_TRUE(std::all_of(got.begin(), got.end(),
                              [&](float value) { return value == static_cast<float>(i); }))
          << "message " << i;
    }
  });
}

TEST_P(EveryWorld, SynchronousCallsDoTheWork) {
  MailWorld world(GetParam());
  OpOptions at_once;
  at_once.synchronous = true;
  world.run([&](Rank self) {
    for (std::size_t bytes : {8u, 200'000u}) {
      if (world.size() < 2 || self > 1) return;
      Data data(bytes);
      if (self == 0) {
        EXPECT_TRUE(world[0].send(data.fill(0, 1, 1).buffer(), 1, 1, at_once, 0)->done());
        EXPECT_TRUE(world[0].recv(data.buffer(), 1, 1, at_once, 1)->done());
        EXPECT_EQ(data.wrong(1, 0, 1), -1);
      } else {
        EXPECT_TRUE(world[1].recv(data.buffer(), 0, 1, at_once, 0)->done());
        EXPECT_EQ(data.wrong(0, 1, 1), -1);
        EXPECT_TRUE(world[1].send(data.fill(1, 0, 1).buffer(), 0, 1, at_once, 1)->done());
      }
    }
  });
}

// Nobody calls wait(): the thread moves the messages.
TEST_P(EveryWorld, MessagesMoveWithoutAWaiter) {
  MailWorld world(GetParam());
  world.run([&](Rank self) {
    const Rank peer = world.size() - 1 - self;
    Data out(500'000);
    Data in(500'000);
    const WorkPtr got = world[self].recv(in.buffer(), peer, 9, {}, 0);
    const WorkPtr sent = world[self].send(out.fill(self, peer, 9).buffer(), peer, 9, {}, 1);
    const TimePoint limit = Clock::now() + kPatience;
    while (!(got->done() && sent->done()) && Clock::now() < limit) std::this_thread::yield();
    ASSERT_TRUE(got->done() && sent->done());
    EXPECT_EQ(in.wrong(peer, self, 9), -1);
  });
}

// Several threads of each rank exchange with several threads of the others.
TEST_P(EveryWorld, ThreadsOfARank) {
  MailWorld world(GetParam());
  world.run([&](Rank self) {
    std::vector<std::thread> threads;
    for (std::uint64_t tag = 0; tag < 3; ++tag) {
      threads.emplace_back([&world, self, tag] {
        const Rank to = (self + 1) % world.size();
        const Rank from = (self + world.size() - 1) % world.size();
        for (std::size_t i = 0; i < 50; ++i) {
          Data out(i * 1777);
          Data in(i * 1777);
          const WorkPtr got = world[self].recv(in.buffer(), from, tag, {}, 0);
          world[self].send(out.fill(self, to, tag + i).buffer(), to, tag, {}, 1)->wait();
          got->wait();
          EXPECT_EQ(in.wrong(from, self, tag + i), -1) << "tag " << tag << " message " << i;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

// Random messages between all pairs, with receives in random order.
TEST_P(EveryWorld, RandomExchange) {
  const unsigned seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE("seed " + std::to_string(seed));
  const TimePoint end = Clock::now() + milliseconds(300);
  MailWorld world(GetParam());
  for (unsigned round = 0; round == 0 || Clock::now() < end; ++round) {
    struct Plan {
      Rank from, to;
      std::uint64_t tag;
      std::size_t bytes;
      bool registered;
    };
    std::mt19937 random(seed + round);
    std::vector<Plan> plans;
    for (std::uint64_t tag = 0; tag < 40; ++tag) {
      const auto rank = [&] {
        return static_cast<Rank>(random() % static_cast<unsigned>(world.size()));
      };
      const std::size_t most = std::size_t{1} << random() % 19;
      plans.push_back({rank(), rank(), tag, random() % most, random() % 2 == 0});
    }
    world.run([&](Rank self) {
      std::mt19937 own(seed + round + static_cast<unsigned>(self));
      std::vector<Plan> order = plans;
      std::shuffle(order.begin(), order.end(), own);
      std::vector<std::unique_ptr<Data>> kept;
      std::vector<WorkPtr> works;
      std::vector<std::function<void()>> checks;
      for (const Plan& plan : order) {
        transport::Arena* arena = plan.registered ? world.transport(self).arena().get() : nullptr;
        if (plan.from == self) {
          kept.push_back(std::make_unique<Data>(plan.bytes, arena));
          kept.back()->fill(plan.from, plan.to, plan.tag);
          works.push_back(world[self].send(kept.back()->buffer(), plan.to, plan.tag, {}, 0));
        }
        if (plan.to == self) {
          kept.push_back(std::make_unique<Data>(plan.bytes, arena));
          works.push_back(world[self].recv(kept.back()->buffer(), plan.from, plan.tag, {}, 0));
          checks.push_back([plan, data = kept.back().get()] {
            EXPECT_EQ(data->wrong(plan.from, plan.to, plan.tag), -1)
                << plan.from << " to " << plan.to << ", " << plan.bytes << " bytes";
          });
        }
      }
      std::shuffle(works.begin(), works.end(), own);
      for (const WorkPtr& work : works) work->wait();
      for (const auto& check : checks) check();
    });
  }
}

// Buffered messages are delivered although their sender has ended.
TEST_P(EveryWorld, EndedSendersMessagesArrive) {
  MailWorld world(GetParam());
  if (world.size() < 2) return;
  const Rank last = world.size() - 1;
  world.run([&](Rank self) {
    std::vector<float> values{1, 2, 3};
    if (self == 0) {
      world[0].send(floats(values), last, 4, {}, 0)->wait();
      world.close(0);
    } else if (self == last) {
      std::vector<float> got(3);
      world[last].recv(floats(got), 0, 4, {}, 0)->wait();
      EXPECT_EQ(got, values);
    }
  });
}

// Neither rank has done anything before; each is buffered here until the other one comes.
TEST_P(MatchingOfTwoRanks, SmallSendsWaitForNobody) {
  MailWorld world(GetParam());
  std::vector<float> values{1, 2, 3};
  std::vector<float> got(3);
  for (const Rank from : {0, 1}) {
    std::vector<float> sent = values;
    for (int i = 0; i < 20; ++i) world[from].send(floats(sent), 1 - from, 2, {}, 0)->wait();
    sent.assign(3, 0);  // The buffer is the caller's again.
  }
  for (int i = 0; i < 20; ++i) {
    for (const Rank from : {0, 1}) {
      world[1 - from].recv(floats(got), from, 2, {}, 1)->wait();
      EXPECT_EQ(got, values);
    }
  }
}

TEST(Matching, SelfSendMeetsItsReceive) {
  MailWorld world({2});
  for (const std::size_t bytes : {10u, 100'000u}) {
    Data out(bytes);
    Data in(bytes);
    const WorkPtr sent = world[1].send(out.fill(1, 1, 2).buffer(), 1, 2, {}, 0);
    EXPECT_EQ(sent->done(), bytes <= runtime::kEagerBytes);
    world[1].recv(in.buffer(), 1, 2, {}, 1)->wait();
    sent->wait();
    EXPECT_EQ(in.wrong(1, 1, 2), -1);
  }
}

// Rank 2 listens because of rank 0, and rank 1 comes before it is asked for.
TEST(Matching, EarlyConnectionsAreKept) {
  MailWorld world({1, 1, 1});
  std::vector<float> one{1};
  std::vector<float> from_zero{0};
  std::vector<float> from_one{0};
  const WorkPtr waiting = world[2].recv(floats(from_zero), 0, 0, {}, 0);
  world[1].send(floats(one), 2, 0, {}, 0)->wait();
  std::this_thread::sleep_for(milliseconds(150));  // sleep: the connection is made meanwhile.
  world[2].recv(floats(from_one), 1, 0, {}, 0)->wait();
  world[0].send(floats(one), 2, 0, {}, 0)->wait();
  waiting->wait();
  EXPECT_EQ(from_zero, one);
  EXPECT_EQ(from_one, one);
}

// Groups that use the same memory one after the other: nothing of the first comes to the second.
TEST(Matching, LaterGroupsSeeNothingOfEarlierOnes) {
  auto transports = test::connected_transports({2});
  std::vector<float> first{1};
  std::vector<float> got{0};
  for (int i = 0; i < 3; ++i) {
    std::vector<float> second{10 + static_cast<float>(i)};
    const auto zero = std::make_shared<runtime::PostOffice>(*transports[0], runtime::Meeting(), 0,
                                                            mail_options(kPatience));
    const auto one = std::make_shared<runtime::PostOffice>(*transports[1], runtime::Meeting(), 0,
                                                           mail_options(kPatience));
    const WorkPtr work = one->recv(floats(got), 0, 0, {}, 0);  // Looks before there is anything.
    zero->send(floats(second), 1, 0, {}, 0)->wait();
    work->wait();
    EXPECT_EQ(got, second);
    zero->send(floats(first), 1, 0, {}, 0)->wait();  // Nobody receives it.
  }
}

TEST(Matching, ExchangeWithinAndBetweenNodes) {
  const test::TempDir folder;
  const auto children = test::fork_mail(
      {2, 1}, folder.path() / "store", [](runtime::PostOffice& mail, transport::Transport& own) {
        const Rank self = own.topology().rank();
        const Rank to = (self + 1) % 3;
        const Rank from = (self + 2) % 3;
        for (const std::size_t bytes : {8u, 1'000'003u}) {
          for (transport::Arena* arena :
               {static_cast<transport::Arena*>(nullptr), own.arena().get()}) {
            Data out(bytes, arena);
            Data in(bytes, arena);
            const WorkPtr got = mail.recv(in.buffer(), from, 1, {}, 0);
            mail.send(out.fill(self, to, 1).buffer(), to, 1, {}, 1)->wait();
            got->wait();
            if (in.wrong(from, self, 1) != -1) return 1;
          }
        }
        return 0;
      });
  for (const pid_t child : children) EXPECT_EQ(test::reap(child, kPatience), 0);
}

}  // namespace
}  // namespace ddp
