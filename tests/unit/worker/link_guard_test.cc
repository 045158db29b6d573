// Connections between nodes of jobs with a token or TLS.
#include "worker/transport/link_guard.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/worker_world.h"
#include "worker/transport/tcp.h"
#include "worker/transport/tcp_sockets.h"

namespace ddp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::LinkKind;
using ::testing::HasSubstr;
using transport::Connection;

TimePoint in(Duration time) { return Clock::now() + time; }

struct Pair {
  Connection connecting;
  Connection accepting;
};

class LinkGuard : public ::testing::TestWithParam<LinkKind> {
 protected:
  Pair make_pair(char key = 'k', char other_key = 'k') const {
    auto [one, other] = test::socket_pair();
    return {test::guard_of(GetParam(), key)->connecting(std::move(one)),
            test::guard_of(GetParam(), other_key)->accepting(std::move(other))};
  }
  // What the other end gets of it: its bytes, or what went wrong on either end.
  static std::string send(Connection& from, Connection& to, const std::string& text) {
    std::string got(text.size(), ' ');
    std::string wrong;
    std::thread sending([&] {
      const auto sent = transport::send_all(from, std::as_bytes(std::span(text)), in(seconds(30)));
      if (sent) return;
      wrong = sent.error().message;
      from.shut_down(SHUT_RDWR);
    });
    const auto received =
        transport::receive_all(to, std::as_writable_bytes(std::span(got)), in(seconds(30)));
    if (!received) to.shut_down(SHUT_RDWR);
    sending.join();
    return received ? got : wrong + " / " + received.error().message;
  }
};

// In pieces of all sizes, and more than the socket takes at once, so that both ends block.
TEST_P(LinkGuard, BytesArriveInBothDirections) {
  Pair pair = make_pair();
  std::mt19937 random(1);
  for (const std::size_t size : {1, 2, 100, 16'384, 16'385, 70'000, 5'000'000}) {
    std::string text(size, ' ');
    for (char& each : text) each = static_cast<char>(random());
    ASSERT_TRUE(send(pair.connecting, pair.accepting, text) == text) << size;
    ASSERT_TRUE(send(pair.accepting, pair.connecting, text) == text) << size;
  }
}

TEST_P(LinkGuard, TwoPiecesAreMovedInOrder) {
  Pair pair = make_pair();
  ASSERT_EQ(send(pair.connecting, pair.accepting, "x"), "x");
  const std::string head = "head";
  const std::string body(100'000, 'b');
  std::span<const std::byte> first = std::as_bytes(std::span(head));
  std::span<const std::byte> second = std::as_bytes(std::span(body));
  std::string got(head.size() + body.size() + 10, ' ');
  std::span<std::byte> room = std::as_writable_bytes(std::span(got));
  std::size_t moved = 0;
  const TimePoint limit = in(seconds(30));
  while (moved < head.size() + body.size() && Clock::now() < limit) {
    if (const ssize_t sent = pair.connecting.send(first, second); sent > 0) {
      const std::size_t of_first = std::min(static_cast<std::size_t>(sent), first.size());
      first = first.subspan(of_first);
      second = second.subspan(static_cast<std::size_t>(sent) - of_first);
    }
    const std::span<std::byte> left = room.subspan(moved);
    const std::size_t half = std::min<std::size_t>(left.size(), 3);
    const ssize_t received = pair.accepting.receive(left.first(half), left.subspan(half));
    if (received > 0) moved += static_cast<std::size_t>(received);
  }
  EXPECT_TRUE(got.substr(0, moved) == head + body);
}

TEST_P(LinkGuard, AnotherKeyIsRefusedOnBothEnds) {
  Pair pair = make_pair('k', 'x');
  EXPECT_THAT(send(pair.connecting, pair.accepting, "secret"),
              AnyOf(HasSubstr("it does not know the key of this round"),
                    HasSubstr("no TLS with it"), HasSubstr("it closed the connection before")));
}

TEST_P(LinkGuard, StrangersGetNothing) {
  for (const std::string& said :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, '\0'),
        std::string("\xDD\x44PR\x02\x01\x05links", 11), std::string("\x16\x03\x01\x02", 4)}) {
    auto [one, other] = test::socket_pair();
    Connection stranger(std::move(one));
    Connection accepting = test::guard_of(GetParam())->accepting(std::move(other));
    (void)stranger.send(std::as_bytes(std::span(said)));
    stranger.shut_down(SHUT_WR);
    std::byte got{};
    EXPECT_FALSE(transport::receive_all(accepting, {&got, 1}, in(seconds(30))));
    accepting = {};
    std::string heard;
    char buffer[1024];
    for (;;) {
      const ssize_t count = ::recv(stranger.fd(), buffer, sizeof(buffer), 0);
      if (count <= 0) break;
      heard.append(buffer, static_cast<std::size_t>(count));
    }
    EXPECT_LT(heard.size(), 200u) << "the answer of a handshake at most";
  }
}

TEST_P(LinkGuard, TheEndOfAConnectionIsSeenAndSendsNoSignal) {
  Pair pair = make_pair();
  ASSERT_EQ(send(pair.connecting, pair.accepting, "x"), "x");
  ASSERT_EQ(send(pair.accepting, pair.connecting, "y"), "y");
  pair.accepting = {};
  std::byte byte{};
  const auto received = transport::receive_all(pair.connecting, {&byte, 1}, in(seconds(30)));
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().message, "it closed the connection");
  ::signal(SIGPIPE, SIG_DFL);
  const std::string text(1 << 20, 't');
  EXPECT_FALSE(
      transport::send_all(pair.connecting, std::as_bytes(std::span(text)), in(seconds(30))));
  sigset_t pending;
  ::sigpending(&pending);
  EXPECT_EQ(::sigismember(&pending, SIGPIPE), 0);
}

transport::LinkIdentity identity() { return {3, 2, 0, 0, 1, 1}; }

// Somebody has read the endpoint in the store, whose traffic the network may see.
TEST_P(LinkGuard, WhoOnlyKnowsTheEndpointDoesNotGetIn) {
  auto listener = std::move(transport::TcpListener::open(test::guard_of(GetParam()))).value();
  const std::string endpoint = listener->endpoint({"127.0.0.1"});
  Result<std::vector<transport::LinkConnections>> accepted =
      make_error(Errc::kNotFound, "nothing yet");
  std::thread accepting([&] { accepted = listener->accept({identity()}, in(seconds(30))); });
  EXPECT_FALSE(transport::connect_link(endpoint, identity(), in(seconds(5))));
  EXPECT_FALSE(transport::connect_link(endpoint, identity(), in(seconds(5)), EngineKind::kTcp,
                                       test::guard_of(GetParam(), 'x').get()));
  const auto guard = test::guard_of(GetParam());
  auto connected =
      transport::connect_link(endpoint, identity(), in(seconds(30)), EngineKind::kTcp, guard.get());
  accepting.join();
  ASSERT_TRUE(connected) << connected.error().message;
  ASSERT_TRUE(accepted) << accepted.error().message;
  std::byte byte{42};
  EXPECT_TRUE(transport::send_all(connected->data, {&byte, 1}, in(seconds(30))));
  std::byte got{};
  EXPECT_TRUE(transport::receive_all(accepted->front().data, {&got, 1}, in(seconds(30))));
  EXPECT_EQ(got, byte);
}

// Messages have connections of their own.
TEST_P(LinkGuard, MessagesBetweenNodes) {
  test::with_groups(
      {1, 1, 1},
      [](ProcessGroup& group) {
        const auto next = (group.rank() + 1) % 3;
        const auto last = (group.rank() + 2) % 3;
        for (const std::size_t size : {1, 1'000, 1'000'000}) {
          std::vector<float> out(size, static_cast<float>(group.rank()));
          std::vector<float> in(size, -1);
          const auto sent = group.send({out.data(), size, DType::kF32}, next);
          group.recv({in.data(), size, DType::kF32}, last)->wait();
          sent->wait();
          EXPECT_EQ(in, std::vector<float>(size, static_cast<float>(last)));
        }
      },
      GetParam());
}

INSTANTIATE_TEST_SUITE_P(Kinds, LinkGuard,
                         ::testing::Values(LinkKind::kProven, LinkKind::kEncrypted),
                         [](const auto& kind) { return std::string(test::name_of(kind.param)); });

TEST(LinkGuardEngine, UcxDoesNotEncrypt) {
  runtime::Meeting meeting =
      test::local_meeting(std::make_shared<test::HashStore>(), LinkKind::kEncrypted);
  meeting.engine = EngineKind::kUcx;
  transport::LaneLinks links;
  runtime::NodeLinks node_links(meeting, 2, 0, in(seconds(30)));
  const auto failure = node_links.connect(transport::Topology({1, 1}, 0), links);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code, Errc::kInvalidArgument);
  EXPECT_THAT(failure->text, HasSubstr("set DDP_LINK=tcp on all nodes"));
}

}  // namespace
}  // namespace ddp
