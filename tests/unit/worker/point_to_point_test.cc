#include "worker/runtime/point_to_point.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errc.h"
#include "common/store/file_store.h"
#include "common/store/hash_store.h"
#include "tests/support/temp_dir.h"
#include "worker/transport/endpoint.h"
#include "worker/transport/inproc.h"
#include "worker/transport/tcp_sockets.h"

namespace ddp {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr milliseconds kPatience = std::chrono::seconds(30);

PointToPoint::Options options_of(milliseconds timeout) {
  PointToPoint::Options options;
  options.timeout = timeout;
  return options;
}

Meeting meeting_at(std::shared_ptr<Store> store) {
  Meeting meeting;
  meeting.store = std::move(store);
  meeting.prefix = "test";
  meeting.addresses = {"127.0.0.1"};
  return meeting;
}

// All ranks of a world in this process; links between nodes are TCP connections.
class World {
 public:
  explicit World(const std::vector<int>& nodes,
                 PointToPoint::Options options = options_of(kPatience))
      : transports_(std::move(make_inproc_transports(nodes, 0)).value()) {
    auto store = std::make_shared<HashStore>();
    for (auto& transport : transports_) {
      mail_.push_back(PointToPoint::make(*transport, meeting_at(store), 0, options));
    }
  }
  int size() const { return static_cast<int>(mail_.size()); }
  PointToPoint& operator[](Rank rank) { return *mail_[static_cast<std::size_t>(rank)]; }
  Transport& transport(Rank rank) { return *transports_[static_cast<std::size_t>(rank)]; }
  void close(Rank rank) { mail_[static_cast<std::size_t>(rank)]->close(); }

  // body(rank) on a thread per rank; what escapes fails the test.
  void run(const std::function<void(Rank)>& body) {
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < size(); ++rank) {
      threads.emplace_back([rank, &body] {
        try {
          body(rank);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::shared_ptr<PointToPoint>> mail_;
};

// What rank `from` sends to rank `to` under a tag: no two messages have the same bytes.
std::uint8_t pattern(Rank from, Rank to, std::uint64_t tag, std::size_t i) {
  return static_cast<std::uint8_t>(i * 7 + i / 251 + static_cast<std::size_t>(from) * 31 +
                                   static_cast<std::size_t>(to) * 17 + tag * 13 + 1);
}

// Bytes in private memory, or in the arena of a rank.
class Data {
 public:
  explicit Data(std::size_t bytes, Arena* arena = nullptr) : bytes_(bytes) {
    memory_ = arena != nullptr ? arena->allocate(bytes)
                               : std::shared_ptr<std::byte>(new std::byte[bytes + 1],
                                                            std::default_delete<std::byte[]>());
    std::fill_n(memory_.get(), bytes, std::byte{0xEE});
  }
  Buffer buffer() { return {memory_.get(), bytes_, DType::kU8}; }
  Data& fill(Rank from, Rank to, std::uint64_t tag) {
    for (std::size_t i = 0; i < bytes_; ++i)
      memory_.get()[i] = std::byte{pattern(from, to, tag, i)};
    return *this;
  }
  // The first byte that is not as it should be; -1 if there is none.
  std::ptrdiff_t wrong(Rank from, Rank to, std::uint64_t tag) const {
    for (std::size_t i = 0; i < bytes_; ++i) {
      if (memory_.get()[i] != std::byte{pattern(from, to, tag, i)})
        return static_cast<std::ptrdiff_t>(i);
    }
    return -1;
  }

 private:
  std::size_t bytes_;
  std::shared_ptr<std::byte> memory_;
};

Buffer floats(std::vector<float>& values) { return {values.data(), values.size(), DType::kF32}; }

// The CollectiveError of a call; empty text if there is none.
CollectiveError error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const CollectiveError& error) {
    return error;
  }
  return {"", std::error_code(), -1};
}

class EveryWorld : public testing::TestWithParam<std::vector<int>> {};

std::string name_of_world(const testing::TestParamInfo<std::vector<int>>& info) {
  std::string name = "nodes";
  for (const int size : info.param) name += "_" + std::to_string(size);
  return name;
}

INSTANTIATE_TEST_SUITE_P(Worlds, EveryWorld,
                         testing::Values(std::vector<int>{1}, std::vector<int>{2},
                                         std::vector<int>{3}, std::vector<int>{1, 1},
                                         std::vector<int>{2, 2}, std::vector<int>{1, 1, 1},
                                         std::vector<int>{2, 1}),
                         name_of_world);

// Itself included: all receives first, then all sends, of every size.
TEST_P(EveryWorld, AllPairsExchangeAtOnce) {
  World world(GetParam());
  for (const bool registered : {false, true}) {
    for (const std::size_t bytes : {0u, 1u, 8u, 4095u, 32769u, 300'001u, 1'048'577u}) {
      world.run([&](Rank self) {
        Arena* arena = registered ? world.transport(self).arena().get() : nullptr;
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
  World world(GetParam());
  for (const std::size_t bytes : {100u, 900'000u}) {
    world.run([&](Rank self) {
      const Rank next = (self + 1) % world.size();
      const Rank previous = (self + world.size() - 1) % world.size();
      if (next == self && bytes > PointToPoint::kEagerBytes) return;  // Nobody else could take it.
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
  World world(GetParam());
  world.run([&](Rank self) {
    const Rank to = (self + 1) % world.size();
    const Rank from = (self + world.size() - 1) % world.size();
    Arena* arena = world.transport(self).arena().get();
    std::vector<Data> out;
    std::vector<WorkPtr> works;
    out.reserve(kTags * kEach);
    for (std::uint64_t tag = 0; tag < kTags; ++tag) {
      for (std::size_t i = 0; i < kEach; ++i) {
        out.emplace_back(1000 + 40'000 * tag, tag % 2 == 0 ? arena : nullptr)
            .fill(self, to, 100 * tag + i);
        const std::uint64_t sent_tag = tag == 4 ? PointToPoint::kInternalTags + 4 : tag;
        works.push_back(world[self].send(out.back().buffer(), to, sent_tag, {}, 0));
      }
    }
    for (std::uint64_t left = kTags; left > 0; --left) {
      const std::uint64_t tag = left - 1;
      for (std::size_t i = 0; i < kEach; ++i) {
        Data in(1000 + 40'000 * tag);
        const std::uint64_t sent_tag = tag == 4 ? PointToPoint::kInternalTags + 4 : tag;
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
  World world(GetParam());
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
  World world(GetParam());
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
  World world(GetParam());
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
  World world(GetParam());
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
  World world(GetParam());
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
        Arena* arena = plan.registered ? world.transport(self).arena().get() : nullptr;
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
  World world(GetParam());
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

// Failures.

class TwoRanks : public testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(Worlds, TwoRanks,
                         testing::Values(std::vector<int>{2}, std::vector<int>{1, 1}),
                         name_of_world);

// Neither rank has done anything before; each is buffered here until the other one comes.
TEST_P(TwoRanks, SmallSendsWaitForNobody) {
  World world(GetParam());
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

TEST_P(TwoRanks, DifferentCountsFailBoth) {
  World world(GetParam());
  world.run([&](Rank self) {
    std::vector<float> values(self == 0 ? 5 : 6);
    const auto error = error_of([&] {
      if (self == 0) {
        world[0].send(floats(values), 1, 7, {}, 3)->wait();
        world[0].recv(floats(values), 1, 8, {}, 4)->wait();  // The send may be done long before.
      } else {
        world[1].recv(floats(values), 0, 7, {}, 3)->wait();
      }
    });
    EXPECT_THAT(error.what(), HasSubstr("rank 0 sent 5 f32 with tag 7, rank 1 expects 6 f32"));
    EXPECT_EQ(error.code, Errc::kMismatch);
    EXPECT_EQ(error_of([&] { world[self].send(floats(values), 0, 0, {}, 5); }).code,
              Errc::kMismatch);
  });
}

TEST_P(TwoRanks, DifferentTypesFailBoth) {
  World world(GetParam());
  world.run([&](Rank self) {
    std::vector<float> values(50'000);
    Buffer buffer = floats(values);
    if (self == 1) buffer.type = DType::kI32;
    const auto error = error_of([&] {
      if (self == 0) world[0].send(buffer, 1, 7, {}, 3)->wait();
      world[self].recv(buffer, 1 - self, self == 0 ? 8 : 7, {}, 3)->wait();
    });
    EXPECT_THAT(error.what(),
                HasSubstr("rank 0 sent 50000 f32 with tag 7, rank 1 expects 50000 i32"));
    EXPECT_EQ(error.code, Errc::kMismatch);
  });
}

TEST_P(TwoRanks, ReceiveWithoutMessageTimesOut) {
  World world(GetParam());
  std::vector<float> values(5);
  std::vector<float> others(5);
  if (world.transport(0).topology().nodes() == 1)
    world[1].send(floats(others), 0, 6, {}, 0)->wait();
  const TimePoint begin = Clock::now();
  OpOptions options;
  options.timeout = milliseconds(300);
  options.tag = "halo";
  const auto error = error_of([&] { world[0].recv(floats(values), 1, 7, options, 12)->wait(); });
  EXPECT_THAT(error.what(),
              HasSubstr("recv #12 from rank 1 tag 7 (halo): timed out after 300 ms: "));
  EXPECT_EQ(error.code, Errc::kTimeout);
  EXPECT_EQ(error.suspect_rank, 1);
  EXPECT_GE(Clock::now() - begin, milliseconds(300));
  EXPECT_LT(Clock::now() - begin, milliseconds(1500));
  if (world.transport(0).topology().nodes() == 1) {
    EXPECT_THAT(error.what(),
                HasSubstr("rank 1 has sent no matching message, only some with tag 6"));
  } else {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 exchanges no messages"));
  }
}

TEST_P(TwoRanks, SendWithoutReceiveTimesOut) {
  World world(GetParam());
  // Connected, and nothing else under way.
  world.run([&](Rank self) {
    std::vector<float> one(1);
    if (self == 0) world[0].send(floats(one), 1, 1, {}, 0)->wait();
    if (self == 1) world[1].recv(floats(one), 0, 1, {}, 0)->wait();
  });
  Data large(std::size_t{16} << 20);
  OpOptions options;
  options.timeout = milliseconds(300);
  const auto error = error_of([&] { world[0].send(large.buffer(), 1, 7, options, 12)->wait(); });
  EXPECT_THAT(error.what(),
              HasSubstr("send #12 to rank 1 tag 7: timed out after 300 ms: rank 1 has"));
  EXPECT_EQ(error.code, Errc::kTimeout);
}

TEST_P(TwoRanks, RegisteredSendWithoutReceiveTimesOut) {
  World world(GetParam());
  if (world.transport(0).topology().nodes() > 1) return;
  Data large(1 << 20, world.transport(0).arena().get());
  OpOptions options;
  options.timeout = milliseconds(200);
  const auto error = error_of([&] { world[0].send(large.buffer(), 1, 7, options, 12)->wait(); });
  EXPECT_STREQ(
      error.what(),
      "send #12 to rank 1 tag 7: timed out after 200 ms: rank 1 has posted no matching receive");
}

// Nobody waits: the thread sees the deadline, and the failure reaches the owner.
TEST_P(TwoRanks, DeadlineIsKeptWithoutAWaiter) {
  std::atomic<bool> told{false};
  auto options = options_of(milliseconds(200));
  options.on_failure = [&](const Failure& failure) {
    EXPECT_EQ(failure.code, Errc::kTimeout);
    told = true;
  };
  World world(GetParam(), options);
  std::vector<float> values(5);
  const WorkPtr work = world[0].recv(floats(values), 1, 7, {}, 0);
  const TimePoint limit = Clock::now() + kPatience;
  while (!told && Clock::now() < limit) std::this_thread::yield();
  EXPECT_TRUE(told);
  EXPECT_TRUE(work->done());
  EXPECT_EQ(error_of([&] { work->wait(); }).code, Errc::kTimeout);
}

TEST_P(TwoRanks, AbortWakesWaiters) {
  World world(GetParam());
  std::vector<float> values(5);
  const WorkPtr work = world[0].recv(floats(values), 1, 7, {}, 0);
  std::thread aborter([&] {
    std::this_thread::sleep_for(milliseconds(50));  // sleep: the waiter is to be asleep.
    world.transport(0).segment().raise_abort(
        {Errc::kAborted, 1, "rank 1 aborted the group: enough"});
  });
  const TimePoint begin = Clock::now();
  const auto error = error_of([&] { work->wait(); });
  EXPECT_LT(Clock::now() - begin, milliseconds(500));
  EXPECT_THAT(error.what(), HasSubstr("enough"));
  EXPECT_EQ(error.code, Errc::kAborted);
  aborter.join();
}

TEST_P(TwoRanks, FailEndsEverything) {
  World world(GetParam());
  std::vector<float> values(5);
  const WorkPtr work = world[0].recv(floats(values), 1, 7, {}, 0);
  world[0].fail({Errc::kPeerLost, 1, "rank 1 has died"});
  EXPECT_TRUE(work->done());
  EXPECT_STREQ(error_of([&] { work->wait(); }).what(), "rank 1 has died");
  EXPECT_STREQ(error_of([&] { world[0].send(floats(values), 1, 7, {}, 1); }).what(),
               "rank 1 has died");
}

TEST_P(TwoRanks, ClosingWithWorkOutstandingAborts) {
  World world(GetParam());
  std::vector<float> values(5);
  const WorkPtr work = world[0].recv(floats(values), 1, 7, {}, 0);
  world.close(0);
  EXPECT_THAT(error_of([&] { work->wait(); }).what(), HasSubstr("rank 0 gave up the group"));
  EXPECT_TRUE(world.transport(0).segment().aborted());
}

TEST_P(TwoRanks, ClosingQuietlyAbortsNobody) {
  World world(GetParam());
  world.run([&](Rank self) {
    Data data(100'000);
    if (self == 0) world[0].send(data.buffer(), 1, 1, {}, 0)->wait();
    if (self == 1) world[1].recv(data.buffer(), 0, 1, {}, 0)->wait();
    world.close(self);
  });
  EXPECT_FALSE(world.transport(0).segment().aborted());
  EXPECT_FALSE(world.transport(1).segment().aborted());
}

// Messages without receives fill the limit; then the sender waits, and all arrive at last.
TEST_P(TwoRanks, UnexpectedMessagesAreBounded) {
  constexpr std::size_t kBytes = 200'000;
  constexpr int kMessages = 40;  // Eight million bytes.
  auto options = options_of(kPatience);
  options.unexpected_limit = 1'000'000;
  World world(GetParam(), options);
  std::vector<Data> out;
  std::vector<WorkPtr> sent;
  for (int i = 0; i < kMessages; ++i) {
    out.emplace_back(kBytes).fill(0, 1, static_cast<std::uint64_t>(i));
  }
  for (int i = 0; i < kMessages; ++i) {
    sent.push_back(world[0].send(out[static_cast<std::size_t>(i)].buffer(), 1,
                                 static_cast<std::uint64_t>(i), {}, 0));
  }
  // The last one is behind more than fits, so this receive does not end.
  Data last(kBytes);
  const WorkPtr behind = world[1].recv(last.buffer(), 0, kMessages - 1, {}, 0);
  std::this_thread::sleep_for(milliseconds(300));  // sleep: nothing may happen.
  EXPECT_FALSE(behind->done());
  EXPECT_FALSE(sent.back()->done());
  for (int i = 0; i + 1 < kMessages; ++i) {
    Data in(kBytes);
    world[1].recv(in.buffer(), 0, static_cast<std::uint64_t>(i), {}, 0)->wait();
    EXPECT_EQ(in.wrong(0, 1, static_cast<std::uint64_t>(i)), -1) << i;
  }
  behind->wait();
  EXPECT_EQ(last.wrong(0, 1, kMessages - 1), -1);
  for (const WorkPtr& work : sent) work->wait();
}

// What was kept is given back: the limit is not one for all times.
TEST_P(TwoRanks, UnexpectedMessagesMakeRoomAgain) {
  auto options = options_of(kPatience);
  options.unexpected_limit = 1'000'000;
  World world(GetParam(), options);
  world.run([&](Rank self) {
    Data large(100'000);
    Data small(10);
    for (int round = 0; round < 20; ++round) {
      if (self == 0) {
        for (int i = 0; i < 5; ++i) world[0].send(large.buffer(), 1, 1, {}, 0)->wait();
        world[0].send(small.buffer(), 1, 2, {}, 0)->wait();
      } else {
        world[1].recv(small.buffer(), 0, 2, {}, 0)->wait();
        for (int i = 0; i < 5; ++i) world[1].recv(large.buffer(), 0, 1, {}, 0)->wait();
      }
    }
  });
}

// A receive that is held up by messages of other tags says so.
TEST(PointToPoint, BlockedReceiveNamesTheReason) {
  auto options = options_of(kPatience);
  options.unexpected_limit = 1 << 20;
  World world({2}, options);
  Data first(2 << 20);
  const WorkPtr sent = world[0].send(first.buffer(), 1, 3, {}, 0);
  std::vector<float> values(1);
  OpOptions soon;
  soon.timeout = milliseconds(300);
  const auto error = error_of([&] { world[1].recv(floats(values), 0, 4, soon, 0)->wait(); });
  EXPECT_THAT(error.what(),
              HasSubstr("only some with tag 3; 1 MiB of messages without a receive hold"));
}

TEST(PointToPoint, SelfSendMeetsItsReceive) {
  World world({2});
  for (const std::size_t bytes : {10u, 100'000u}) {
    Data out(bytes);
    Data in(bytes);
    const WorkPtr sent = world[1].send(out.fill(1, 1, 2).buffer(), 1, 2, {}, 0);
    EXPECT_EQ(sent->done(), bytes <= PointToPoint::kEagerBytes);
    world[1].recv(in.buffer(), 1, 2, {}, 1)->wait();
    sent->wait();
    EXPECT_EQ(in.wrong(1, 1, 2), -1);
  }
}

TEST(PointToPoint, BadArgumentsAreRefused) {
  World world({2});
  std::vector<float> values(5);
  EXPECT_THROW(world[0].send(floats(values), 2, 0, {}, 0), std::invalid_argument);
  EXPECT_THROW(world[0].recv(floats(values), -1, 0, {}, 0), std::invalid_argument);
  EXPECT_THROW(world[0].send({nullptr, 3, DType::kF32}, 1, 0, {}, 0), std::invalid_argument);
  OpOptions options;
  options.timeout = milliseconds(-1);
  EXPECT_THROW(world[0].recv(floats(values), 1, 0, options, 0), std::invalid_argument);
}

// Rank 2 listens because of rank 0, and rank 1 comes before it is asked for.
TEST(PointToPoint, EarlyConnectionsAreKept) {
  World world({1, 1, 1});
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

// Whoever does not know the token is turned away, and harms nobody.
TEST(PointToPoint, StrangersAreTurnedAway) {
  auto transports = std::move(make_inproc_transports({1, 1}, 0)).value();
  auto store = std::make_shared<HashStore>();
  const auto zero = PointToPoint::make(*transports[0], meeting_at(store), 0, options_of(kPatience));
  const auto one = PointToPoint::make(*transports[1], meeting_at(store), 0, options_of(kPatience));
  std::vector<float> got{0};
  std::vector<float> sent{5};
  const WorkPtr work = one->recv(floats(got), 0, 0, {}, 0);
  const auto text = store->get("test/p2p/1", kPatience);
  const Endpoint endpoint = parse_endpoint(*text).value();
  for (const std::size_t bytes : {std::size_t{3}, std::size_t{48}, std::size_t{500}}) {
    auto fd = connect_socket("127.0.0.1", endpoint.port, Clock::now() + kPatience);
    ASSERT_TRUE(fd);
    // The hello of rank 0, but for the token.
    std::vector<std::byte> hello(bytes);
    const std::uint32_t words[12] = {0x4D504444, 1, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0};
    std::memcpy(hello.data(), words, std::min(bytes, sizeof(words)));
    ASSERT_TRUE(send_all(fd->get(), hello.data(), bytes, Clock::now() + kPatience));
    std::byte answer{};
    if (bytes >= sizeof(words)) {
      EXPECT_FALSE(receive_all(fd->get(), &answer, 1, Clock::now() + std::chrono::seconds(5)));
    }
  }
  zero->send(floats(sent), 1, 0, {}, 0)->wait();
  work->wait();
  EXPECT_EQ(got, sent);
}

TEST(PointToPoint, NodesWithoutAStoreAreAnError) {
  auto transports = std::move(make_inproc_transports({1, 1}, 0)).value();
  const auto mail = PointToPoint::make(*transports[0], Meeting(), 0, options_of(kPatience));
  std::vector<float> values(5);
  const auto error = error_of([&] { mail->recv(floats(values), 1, 0, {}, 0)->wait(); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0 cannot reach rank 1"), HasSubstr("no store")));
}

// Groups that use the same memory one after the other: nothing of the first comes to the second.
TEST(PointToPoint, LaterGroupsSeeNothingOfEarlierOnes) {
  auto transports = std::move(make_inproc_transports({2}, 0)).value();
  std::vector<float> first{1};
  std::vector<float> got{0};
  for (int i = 0; i < 3; ++i) {
    std::vector<float> second{10 + static_cast<float>(i)};
    const auto zero = PointToPoint::make(*transports[0], Meeting(), 0, options_of(kPatience));
    const auto one = PointToPoint::make(*transports[1], Meeting(), 0, options_of(kPatience));
    const WorkPtr work = one->recv(floats(got), 0, 0, {}, 0);  // Looks before there is anything.
    zero->send(floats(second), 1, 0, {}, 0)->wait();
    work->wait();
    EXPECT_EQ(got, second);
    zero->send(floats(first), 1, 0, {}, 0)->wait();  // Nobody receives it.
  }
}

// Rings are used again when both ends are gone.
TEST(PointToPoint, RingsAreGivenBack) {
  auto transports = std::move(make_inproc_transports({2}, 0)).value();
  std::vector<float> value{1};
  std::vector<std::byte*> places;
  for (int i = 0; i < 5; ++i) {
    {
      const auto zero = PointToPoint::make(*transports[0], Meeting(), 0, options_of(kPatience));
      const auto one = PointToPoint::make(*transports[1], Meeting(), 0, options_of(kPatience));
      zero->send(floats(value), 1, 0, {}, 0)->wait();
      one->recv(floats(value), 0, 0, {}, 0)->wait();
    }
    places.push_back(transports[0]->arena()->allocate(1).get());
  }
  EXPECT_EQ(places[1], places[4]);
}

// Processes.

std::vector<pid_t> fork_world(const std::vector<int>& nodes, const std::string& path,
                              const std::function<int(PointToPoint&, Transport&)>& body) {
  auto transports = std::move(make_inproc_transports(nodes, 0)).value();
  std::vector<pid_t> children;
  for (std::size_t rank = 0; rank < transports.size(); ++rank) {
    const pid_t child = ::fork();
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    int status = 99;
    try {
      auto own = std::move(transports[rank]);
      transports.clear();
      auto store = std::shared_ptr<Store>(std::move(FileStore::open(path)).value());
      const auto mail = PointToPoint::make(*own, meeting_at(store), 0, options_of(kPatience));
      status = body(*mail, *own);
    } catch (const std::exception& error) {
      const std::string text = "rank " + std::to_string(rank) + ": " + error.what() + "\n";
      (void)!::write(STDERR_FILENO, text.data(), text.size());
    }
    ::_exit(status);
  }
  return children;
}

int status_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(PointToPointProcesses, ExchangeWithinAndBetweenNodes) {
  const test::TempDir folder;
  const auto children =
      fork_world({2, 1}, folder.path() / "store", [](PointToPoint& mail, Transport& own) {
        const Rank self = own.topology().rank();
        const Rank to = (self + 1) % 3;
        const Rank from = (self + 2) % 3;
        for (const std::size_t bytes : {8u, 1'000'003u}) {
          for (Arena* arena : {static_cast<Arena*>(nullptr), own.arena().get()}) {
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
  for (const pid_t child : children) EXPECT_EQ(status_of(child), 0);
}

TEST(PointToPointProcesses, DeathOfAPeerOnAnotherNodeIsSeen) {
  const test::TempDir folder;
  const auto children =
      fork_world({1, 1}, folder.path() / "store", [](PointToPoint& mail, Transport& own) {
        std::vector<float> value{1};
        if (own.topology().rank() == 1) {
          mail.send(floats(value), 0, 1, {}, 0)->wait();
          mail.recv(floats(value), 0, 1, {}, 0)->wait();
          ::_exit(17);
        }
        mail.recv(floats(value), 1, 1, {}, 0)->wait();
        mail.send(floats(value), 1, 1, {}, 0)->wait();
        const TimePoint begin = Clock::now();
        const auto error = error_of([&] { mail.recv(floats(value), 1, 2, {}, 5)->wait(); });
        if (Clock::now() - begin > std::chrono::seconds(2)) return 1;
        if (error.code != Errc::kPeerLost || error.suspect_rank != 1) return 2;
        const std::string text = error.what();
        return text.find("recv #5 from rank 1 tag 2: rank 1 on node 1 is gone") != std::string::npos
                   ? 0
                   : 3;
      });
  EXPECT_EQ(status_of(children[1]), 17);
  EXPECT_EQ(status_of(children[0]), 0);
}

}  // namespace
}  // namespace ddp
