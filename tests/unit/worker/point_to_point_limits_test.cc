#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errc.h"
#include "tests/support/mail_world.h"

// Limits of messages: deadlines, room for those that nobody receives, rings.
namespace ddp {
namespace {

using std::chrono::milliseconds;
using test::Data;
using test::error_of;
using test::floats;
using test::kPatience;
using test::mail_options;
using test::MailWorld;
using testing::HasSubstr;

class LimitsOfTwoRanks : public testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(Worlds, LimitsOfTwoRanks,
                         testing::Values(std::vector<int>{2}, std::vector<int>{1, 1}),
                         test::name_of_mail_world);

TEST_P(LimitsOfTwoRanks, ReceiveWithoutMessageTimesOut) {
  MailWorld world(GetParam());
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
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
  if (world.transport(0).topology().nodes() == 1) {
    EXPECT_THAT(error.what(),
                HasSubstr("rank 1 has sent no matching message, only some with tag 6"));
  } else {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 has not exchanged messages"));
  }
}

TEST_P(LimitsOfTwoRanks, SendWithoutReceiveTimesOut) {
  MailWorld world(GetParam());
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

TEST_P(LimitsOfTwoRanks, RegisteredSendWithoutReceiveTimesOut) {
  MailWorld world(GetParam());
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
TEST_P(LimitsOfTwoRanks, DeadlineIsKeptWithoutAWaiter) {
  std::atomic<bool> told{false};
  auto options = mail_options(milliseconds(200));
  options.on_failure = [&](const Failure& failure) {
    EXPECT_EQ(failure.code, Errc::kTimeout);
    told = true;
  };
  MailWorld world(GetParam(), options);
  std::vector<float> values(5);
  const WorkPtr work = world[0].recv(floats(values), 1, 7, {}, 0);
  const TimePoint limit = Clock::now() + kPatience;
  while (!told && Clock::now() < limit) std::this_thread::yield();
  EXPECT_TRUE(told);
  EXPECT_TRUE(work->done());
  EXPECT_EQ(error_of([&] { work->wait(); }).code, Errc::kTimeout);
}

// Messages without receives fill the limit; then the sender waits, and all arrive at last.
TEST_P(LimitsOfTwoRanks, UnexpectedMessagesAreBounded) {
  constexpr std::size_t kBytes = 200'000;
  constexpr int kMessages = 400;  // 80 million bytes. The kernel may take 40 of them on their way.
  auto options = mail_options(kPatience);
  options.unexpected_limit = 1'000'000;
  MailWorld world(GetParam(), options);
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
  const auto count_done = [&] {
    return std::count_if(sent.begin(), sent.end(),
                         [](const WorkPtr& work) { return work->done(); });
  };
  // Until everything stands still: the kernel takes a while for what it takes.
  for (std::ptrdiff_t before = -1; before != count_done();) {
    before = count_done();
    std::this_thread::sleep_for(milliseconds(300));  // sleep: nothing may happen.
  }
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
TEST_P(LimitsOfTwoRanks, UnexpectedMessagesMakeRoomAgain) {
  auto options = mail_options(kPatience);
  options.unexpected_limit = 1'000'000;
  MailWorld world(GetParam(), options);
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
TEST(Limits, BlockedReceiveNamesTheReason) {
  auto options = mail_options(kPatience);
  options.unexpected_limit = 1 << 20;
  MailWorld world({2}, options);
  Data first(2 << 20);
  const WorkPtr sent = world[0].send(first.buffer(), 1, 3, {}, 0);
  std::vector<float> values(1);
  OpOptions soon;
  soon.timeout = std::chrono::seconds(3);
  const auto error = error_of([&] { world[1].recv(floats(values), 0, 4, soon, 0)->wait(); });
  EXPECT_THAT(error.what(),
              HasSubstr("only some with tag 3; 1 MiB of messages without a receive block"));
}

// Rings are used again when both ends are gone.
TEST(Limits, RingsAreGivenBack) {
  auto transports = test::connected_transports({2});
  std::vector<float> value{1};
  std::vector<std::byte*> places;
  for (int i = 0; i < 5; ++i) {
    {
      const auto zero = std::make_shared<runtime::PostOffice>(*transports[0], runtime::Meeting(), 0,
                                                              mail_options(kPatience));
      const auto one = std::make_shared<runtime::PostOffice>(*transports[1], runtime::Meeting(), 0,
                                                             mail_options(kPatience));
      zero->send(floats(value), 1, 0, {}, 0)->wait();
      one->recv(floats(value), 0, 0, {}, 0)->wait();
    }
    places.push_back(transports[0]->arena()->allocate(1).get());
  }
  EXPECT_EQ(places[1], places[4]);
}

}  // namespace
}  // namespace ddp
