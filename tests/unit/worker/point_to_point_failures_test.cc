#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include "common/base/errc.h"
#include "tests/support/kernels_time_limit.h"
#include "tests/support/mail_world.h"
#include "tests/support/temp_dir.h"
#include "worker/runtime/peer_links.h"
#include "worker/transport/control_links.h"
#include "worker/transport/endpoint.h"
#include "worker/transport/tcp_sockets.h"

// Messages that do not fit, invalid calls, and ranks that end, abort or are not in the group.
namespace ddp {
namespace {

using std::chrono::milliseconds;
using test::Data;
using test::error_of;
using test::floats;
using test::kPatience;
using test::mail_options;
using test::MailWorld;
using testing::AllOf;
using testing::HasSubstr;

class FailuresOfTwoRanks : public testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(Worlds, FailuresOfTwoRanks,
                         testing::Values(std::vector<int>{2}, std::vector<int>{1, 1}),
                         test::name_of_mail_world);

TEST_P(FailuresOfTwoRanks, DifferentCountsFailBoth) {
  MailWorld world(GetParam());
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
    EXPECT_THAT(error.what(), HasSubstr("rank 0 sent 5 f32 with tag 7, but rank 1 expects 6 f32"));
    EXPECT_EQ(error.code, Errc::kMismatch);
    EXPECT_EQ(error_of([&] { world[self].send(floats(values), 0, 0, {}, 5); }).code,
              Errc::kMismatch);
  });
}

TEST_P(FailuresOfTwoRanks, DifferentTypesFailBoth) {
  MailWorld world(GetParam());
  world.run([&](Rank self) {
    std::vector<float> values(50'000);
    Buffer buffer = floats(values);
    if (self == 1) buffer.type = DType::kI32;
    const auto error = error_of([&] {
      if (self == 0) world[0].send(buffer, 1, 7, {}, 3)->wait();
      world[self].recv(buffer, 1 - self, self == 0 ? 8 : 7, {}, 3)->wait();
    });
    EXPECT_THAT(error.what(),
                HasSubstr("rank 0 sent 50000 f32 with tag 7, but rank 1 expects 50000 i32"));
    EXPECT_EQ(error.code, Errc::kMismatch);
  });
}

TEST(Failures, BadArgumentsAreRefused) {
  MailWorld world({2});
  std::vector<float> values(5);
  EXPECT_THROW(world[0].send(floats(values), 2, 0, {}, 0), std::invalid_argument);
  EXPECT_THROW(world[0].recv(floats(values), -1, 0, {}, 0), std::invalid_argument);
  EXPECT_THROW(world[0].send({nullptr, 3, DType::kF32}, 1, 0, {}, 0), std::invalid_argument);
  OpOptions options;
  options.timeout = milliseconds(-1);
  EXPECT_THROW(world[0].recv(floats(values), 1, 0, options, 0), std::invalid_argument);
}

TEST_P(FailuresOfTwoRanks, AbortWakesWaiters) {
  MailWorld world(GetParam());
  std::vector<float> values(5);
  const WorkPtr work = world[0].recv(floats(values), 1, 7, {}, 0);
  std::thread aborter([&] {
    std::this_thread::sleep_for(milliseconds(50));  // sleep: the waiter is to be asleep.
    world.transport(0).segment().raise_abort(
        {Errc::kAborted, 1, "rank 1 aborted the group: enough"});
  });
  const TimePoint begin = Clock::now();
  const auto error = error_of([&] { work->wait(); });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
  EXPECT_THAT(error.what(), HasSubstr("enough"));
  EXPECT_EQ(error.code, Errc::kAborted);
  aborter.join();
}

TEST_P(FailuresOfTwoRanks, FailEndsEverything) {
  MailWorld world(GetParam());
  std::vector<float> values(5);
  const WorkPtr work = world[0].recv(floats(values), 1, 7, {}, 0);
  world[0].fail({Errc::kPeerLost, 1, "rank 1 has died"});
  EXPECT_TRUE(work->done());
  EXPECT_STREQ(error_of([&] { work->wait(); }).what(), "rank 1 has died");
  EXPECT_STREQ(error_of([&] { world[0].send(floats(values), 1, 7, {}, 1); }).what(),
               "rank 1 has died");
}

TEST_P(FailuresOfTwoRanks, ClosingWithWorkOutstandingAborts) {
  MailWorld world(GetParam());
  std::vector<float> values(5);
  const WorkPtr work = world[0].recv(floats(values), 1, 7, {}, 0);
  world.close(0);
  EXPECT_THAT(error_of([&] { work->wait(); }).what(), HasSubstr("rank 0 destroyed the group"));
  EXPECT_TRUE(world.transport(0).segment().aborted());
}

TEST_P(FailuresOfTwoRanks, ClosingQuietlyAbortsNobody) {
  MailWorld world(GetParam());
  world.run([&](Rank self) {
    Data data(100'000);
    if (self == 0) world[0].send(data.buffer(), 1, 1, {}, 0)->wait();
    if (self == 1) world[1].recv(data.buffer(), 0, 1, {}, 0)->wait();
    world.close(self);
  });
  EXPECT_FALSE(world.transport(0).segment().aborted());
  EXPECT_FALSE(world.transport(1).segment().aborted());
}

// Whoever does not know the token is turned away, and harms nobody.
TEST(Failures, StrangersAreTurnedAway) {
  auto transports = test::connected_transports({1, 1});
  auto store = std::make_shared<test::HashStore>();
  const auto zero = std::make_shared<runtime::PostOffice>(
      *transports[0], test::local_meeting(store), 0, mail_options(kPatience));
  const auto one = std::make_shared<runtime::PostOffice>(*transports[1], test::local_meeting(store),
                                                         0, mail_options(kPatience));
  std::vector<float> got{0};
  std::vector<float> sent{5};
  const WorkPtr work = one->recv(floats(got), 0, 0, {}, 0);
  const auto text = store->get("test/p2p/1", kPatience);
  const transport::Endpoint endpoint = transport::parse_endpoint(*text).value();
  for (const std::size_t bytes : {std::size_t{3}, std::size_t{48}, std::size_t{500}}) {
    auto fd = transport::connect_socket("127.0.0.1", endpoint.port, Clock::now() + kPatience);
    ASSERT_TRUE(fd);
    transport::Connection stranger(std::move(*fd));
    // The hello of rank 0, but for the token.
    std::vector<std::byte> hello(bytes);
    const std::uint32_t words[12] = {0x4D504444, 1, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0};
    std::memcpy(hello.data(), words, std::min(bytes, sizeof(words)));
    ASSERT_TRUE(transport::send_all(stranger, hello, Clock::now() + kPatience));
    std::byte answer{};
    if (bytes >= sizeof(words)) {
      EXPECT_FALSE(
          transport::receive_all(stranger, {&answer, 1}, Clock::now() + std::chrono::seconds(5)));
    }
  }
  zero->send(floats(sent), 1, 0, {}, 0)->wait();
  work->wait();
  EXPECT_EQ(got, sent);
}

// How much of a CPU this thread has used.
milliseconds cpu_time() {
  timespec used{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return std::chrono::duration_cast<milliseconds>(std::chrono::seconds(used.tv_sec) +
                                                  std::chrono::nanoseconds(used.tv_nsec));
}

TEST(Failures, AStrangerWhoComesLaterDoesNotKeepAWaiterBusy) {
  auto transports = test::connected_transports({1, 1});
  auto store = std::make_shared<test::HashStore>();
  std::vector<std::shared_ptr<runtime::PostOffice>> mail;
  for (auto& transport : transports)
    mail.push_back(std::make_shared<runtime::PostOffice>(*transport, test::local_meeting(store), 0,
                                                         mail_options(kPatience)));
  std::vector<float> value{5};
  mail[0]->send(floats(value), 1, 0, {}, 0)->wait();
  mail[1]->recv(floats(value), 0, 0, {}, 0)->wait();
  const auto text = store->get("test/p2p/1", kPatience);
  const int port = transport::parse_endpoint(*text).value().port;
  const auto stranger = transport::connect_socket("127.0.0.1", port, Clock::now() + kPatience);
  ASSERT_TRUE(stranger);
  OpOptions options;
  options.timeout = std::chrono::seconds(1);
  const milliseconds before = cpu_time();
  const auto error = error_of([&] { mail[1]->recv(floats(value), 0, 0, options, 1)->wait(); });
  EXPECT_EQ(error.code, Errc::kTimeout) << error.what();
  EXPECT_LT(cpu_time() - before, milliseconds(100));
}

// Rank 2 listens because of rank 1, and waits for it again when rank 0 comes, whose message is more
// than the kernel holds.
TEST(Failures, ARankThatComesWhileAnotherIsAwaitedIsHeard) {
  MailWorld world({1, 1, 1});
  world.run([&](Rank self) {
    Data small(10);
    Data large(std::size_t{32} << 20);
    const auto send = [&](Data& data, Rank to) {
      world[self].send(data.buffer(), to, 1, {}, 0)->wait();
    };
    const auto receive = [&](Data& data, Rank from) {
      world[self].recv(data.buffer(), from, 1, {}, 0)->wait();
    };
    if (self == 0) {
      receive(small, 1);
      send(large, 2);
      send(small, 1);
    } else if (self == 1) {
      send(small, 2);
      receive(small, 2);
      send(small, 0);
      receive(small, 0);
      send(small, 2);
    } else {
      receive(small, 1);
      send(small, 1);
      receive(small, 1);
      receive(large, 0);
    }
  });
}

// A rank that computes for minutes reads nothing meanwhile, and is not lost.
TEST(Failures, ConnectionsForMessagesHaveNoTimeLimitOfTheKernel) {
  const auto store = std::make_shared<test::HashStore>();
  runtime::PeerLinks lower(test::local_meeting(store), 0, transport::Topology({1, 1}, 0));
  runtime::PeerLinks higher(test::local_meeting(store), 0, transport::Topology({1, 1}, 1));
  lower.want(1);
  higher.want(0);
  std::vector<runtime::PeerLinks::Connected> ends;
  for (const TimePoint limit = Clock::now() + kPatience; ends.size() < 2 && Clock::now() < limit;) {
    for (runtime::PeerLinks* each : {&higher, &lower}) ASSERT_FALSE(each->step(ends));
  }
  ASSERT_EQ(ends.size(), 2U);
  for (const auto& end : ends)
    EXPECT_EQ(test::kernels_time_limit(end.connection.fd()), milliseconds(0));
}

TEST(Failures, NodesWithoutAStoreAreAnError) {
  auto transports = test::connected_transports({1, 1});
  const auto mail = std::make_shared<runtime::PostOffice>(*transports[0], runtime::Meeting(), 0,
                                                          mail_options(kPatience));
  std::vector<float> values(5);
  const auto error = error_of([&] { mail->recv(floats(values), 1, 0, {}, 0)->wait(); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0 cannot reach rank 1"), HasSubstr("no store")));
}

TEST(Failures, DeathOfAPeerOnAnotherNodeIsSeen) {
  const test::TempDir folder;
  const auto children = test::fork_mail(
      {1, 1}, folder.path() / "store", [](runtime::PostOffice& mail, transport::Transport& own) {
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
        // Nobody watches here, so nobody gives a verdict.
        if (Clock::now() - begin > transport::ControlLinks::kVerdictTime + std::chrono::seconds(20))
          return 1;
        if (error.code != Errc::kPeerLost || error.suspect_rank != 1) return 2;
        const std::string text = error.what();
        return text.find("recv #5 from rank 1 tag 2: rank 1 on node 1 is gone") != std::string::npos
                   ? 0
                   : 3;
      });
  EXPECT_EQ(test::reap(children[1], kPatience), 17);
  EXPECT_EQ(test::reap(children[0], kPatience), 0);
}

}  // namespace
}  // namespace ddp
