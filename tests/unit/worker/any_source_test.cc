#include <gtest/gtest.h>

#include "tests/support/mail_world.h"

// Receives from whichever rank sends first.
namespace ddp {
namespace {

using runtime::MessageWork;
using test::Data;
using test::MailWorld;

class AnySource : public testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(Worlds, AnySource,
                         testing::Values(std::vector<int>{3}, std::vector<int>{1, 1, 1},
                                         std::vector<int>{2, 1}),
                         test::name_of_mail_world);

// Small messages, which are kept for the receiver, and large ones.
TEST_P(AnySource, GetsEachMessageOnceAndSaysFromWhom) {
  MailWorld world(GetParam());
  for (const std::size_t bytes : {0u, 100u, 300'000u}) {
    world.run([&](Rank self) {
      if (self != 0) {
        Data data(bytes);
        world[self].send(data.fill(self, 0, 5).buffer(), 0, 5, {}, 0)->wait();
        return;
      }
      std::vector<int> seen(static_cast<std::size_t>(world.size()));
      for (int i = 1; i < world.size(); ++i) {
        Data data(bytes);
        const std::shared_ptr<MessageWork> work = world[0].recv_any(data.buffer(), 5, {}, 0);
        work->wait();
        ASSERT_GT(work->source, 0);
        EXPECT_EQ(data.wrong(work->source, 0, 5), -1);
        ++seen[static_cast<std::size_t>(work->source)];
      }
      EXPECT_EQ(seen, std::vector<int>({0, 1, 1}));
    });
  }
}

TEST_P(AnySource, LeavesOtherTagsAndReceivesFromGivenRanksAlone) {
  MailWorld world(GetParam());
  world.run([&](Rank self) {
    const auto send = [&](std::uint64_t tag) {
      Data data(64);
      world[self].send(data.fill(self, 0, tag).buffer(), 0, tag, {}, 0)->wait();
    };
    if (self == 1) {
      send(1);
      send(2);
    } else if (self == 2) {
      send(2);
    } else {
      Data any(64);
      Data given(64);
      Data other(64);
      const auto of_any = world[0].recv_any(any.buffer(), 2, {}, 0);
      const auto of_other = world[0].recv(other.buffer(), 1, 1, {}, 1);
      of_any->wait();
      const Rank rest = 3 - of_any->source;
      const auto of_given = world[0].recv(given.buffer(), rest, 2, {}, 2);
      of_given->wait();
      of_other->wait();
      EXPECT_EQ(any.wrong(of_any->source, 0, 2), -1);
      EXPECT_EQ(given.wrong(rest, 0, 2), -1);
      EXPECT_EQ(other.wrong(1, 0, 1), -1);
    }
  });
}

// Also from this rank itself.
TEST_P(AnySource, TakesAMessageOfItsOwn) {
  MailWorld world(GetParam());
  world.run([&](Rank self) {
    Data out(1000);
    Data in(1000);
    const auto received = world[self].recv_any(in.buffer(), 9, {}, 0);
    world[self].send(out.fill(self, self, 9).buffer(), self, 9, {}, 1)->wait();
    received->wait();
    EXPECT_EQ(received->source, self);
    EXPECT_EQ(in.wrong(self, self, 9), -1);
  });
}

TEST(AnySourceFailure, ATimeOutSaysThatNobodySent) {
  MailWorld world({2}, test::mail_options(std::chrono::milliseconds(100)));
  Data data(8);
  const auto work = world[0].recv_any(data.buffer(), 3, {}, 0);
  try {
    work->wait();
    FAIL() << "did not time out";
  } catch (const CollectiveError& error) {
    EXPECT_NE(std::string(error.what()).find("from any rank tag 3"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("no rank has sent"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace ddp
