#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errc.h"
#include "common/base/unique_fd.h"
#include "common/wire/shm_layout.h"
#include "tests/support/inproc.h"
#include "tests/support/kernels_time_limit.h"
#include "tests/support/other_user.h"
#include "worker/transport/endpoint.h"
#include "worker/transport/tcp.h"
#include "worker/transport/tcp_sockets.h"

namespace ddp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

TimePoint in(milliseconds time) { return Clock::now() + time; }

// A memfd with the header that the agent writes, changed by `change`.
UniqueFd memory_with(const std::function<void(wire::ShmHeader&)>& change,
                     std::size_t bytes = wire::shm_bytes(2)) {
  UniqueFd fd(::memfd_create("ddp-test", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  wire::ShmHeader header;
  header.size_bytes = bytes;
  header.local_size = 2;
  header.round = 3;
  change(header);
  EXPECT_EQ(::pwrite(fd.get(), &header, sizeof(header), 0), static_cast<ssize_t>(sizeof(header)));
  return fd;
}

TEST(Segment, AcceptsWhatTheAgentMakes) {
  const UniqueFd fd = memory_with([](wire::ShmHeader&) {});
  const auto one = test::attach_segment(fd.get(), 2, 3);
  const auto other = test::attach_segment(fd.get(), 2, 3);
  ASSERT_TRUE(one && other);
  (*one)->publish(1, transport::Flag::kReady, 77);
  EXPECT_EQ((*other)->flag(1, transport::Flag::kReady), 77U);
  (*one)->raise_abort({Errc::kMismatch, 1, "because"});
  (*other)->raise_abort({Errc::kAborted, 0, "later"});
  ASSERT_TRUE((*other)->aborted());
  const Failure cause = (*other)->abort_cause();
  EXPECT_EQ(cause.code, Errc::kMismatch);
  EXPECT_EQ(cause.suspect, 1);
  EXPECT_EQ(cause.text, "because");
}

TEST(Segment, RefusesAnotherHeaderNamingTheField) {
  const auto message = [](const UniqueFd& fd) {
    const auto segment = test::attach_segment(fd.get(), 2, 3);
    return segment ? std::string("accepted") : segment.error().message;
  };
  EXPECT_THAT(message(memory_with([](auto& header) { header.magic = 1; })), HasSubstr("magic 0x1"));
  EXPECT_THAT(message(memory_with([](auto& header) { header.version = 9; })),
              HasSubstr("version 9"));
  EXPECT_THAT(message(memory_with([](auto& header) { header.round = 4; })),
              HasSubstr("belongs to round 4"));
  EXPECT_THAT(message(memory_with([](auto& header) { header.local_size = 3; })),
              HasSubstr("for 3 local workers, but LOCAL_WORLD_SIZE is 2"));
  EXPECT_THAT(message(memory_with([](auto&) {}, 64 << 10)), HasSubstr("holds 65536 bytes"));
  EXPECT_THAT(message(UniqueFd(::memfd_create("empty", MFD_CLOEXEC))),
              HasSubstr("its header alone needs 4096"));
  EXPECT_THAT(message(UniqueFd()), HasSubstr("DDP_SHM_FD=-1"));
}

TEST(Segment, LongReasonsAreCut) {
  const auto segment = std::move(test::make_segment(1, 0)).value();
  segment->raise_abort({Errc::kAborted, 0, std::string(2000, 'x')});
  EXPECT_EQ(segment->abort_cause().text, std::string(479, 'x'));
}

TEST(Topology, PlacesRanksAndLanes) {
  const transport::Topology rank3({2, 1, 3}, 3);
  EXPECT_EQ(rank3.node(), 2);
  EXPECT_EQ(rank3.local_rank(), 0);
  EXPECT_EQ(rank3.lanes(), 1);
  EXPECT_EQ(rank3.lane_peer(0), 0);
  EXPECT_EQ(rank3.lane_peer(1), 2);
  EXPECT_EQ(rank3.lane_peer(2), -1);
  EXPECT_EQ(rank3.lane_peer(3), -1);
  const transport::Topology rank1({2, 1, 3}, 1);
  EXPECT_EQ(rank1.lane_peer(1), -1);
  const transport::Topology lane1({2, 2}, 1);
  EXPECT_EQ(lane1.lane_peer(1), 3);
}

struct Sockets {
  UniqueFd data[2];
  UniqueFd control[2];
  Sockets() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    data[0].reset(fds[0]);
    data[1].reset(fds[1]);
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    control[0].reset(fds[0]);
    control[1].reset(fds[1]);
  }
};

TEST(Link, ExplainsAnEndByWhatThePeerSaid) {
  Sockets sockets;
  const auto segment = std::move(test::make_segment(1, 0)).value();
  transport::Link one(std::make_unique<transport::SocketStream>(std::move(sockets.data[0])),
                      std::move(sockets.control[0]), 5, 2);
  one.explain_by(*segment);
  transport::Link other(std::make_unique<transport::SocketStream>(std::move(sockets.data[1])),
                        std::move(sockets.control[1]), 4, 1);
  std::byte byte{};
  EXPECT_EQ(one.receive_some(&byte, 1), 0);
  EXPECT_TRUE(one.wants_data());
  other.close({Errc::kMismatch, 3, "they disagree"});
  // The cause comes later than the end, by way of a watch that the machine does not let run.
  const auto late = 2 * transport::ControlLinks::kExplanationTime;
  std::thread watch([&] {
    std::this_thread::sleep_for(late);  // sleep: as under load
    segment->raise_abort({Errc::kMismatch, 3, "they disagree"});
  });
  EXPECT_EQ(one.receive_some(&byte, 1), -1);
  watch.join();
  EXPECT_EQ(one.failure().text, "they disagree");
  EXPECT_EQ(one.failure().code, Errc::kMismatch);
  EXPECT_EQ(one.failure().suspect, 3);
  EXPECT_TRUE(one.failure().told);
}

TEST(Link, AnEndWithoutAWordIsADeath) {
  Sockets sockets;
  const auto segment = std::move(test::make_segment(1, 0)).value();
  transport::Link one(std::make_unique<transport::SocketStream>(std::move(sockets.data[0])),
                      std::move(sockets.control[0]), 5, 2);
  one.explain_by(*segment);
  sockets.data[1].reset();
  sockets.control[1].reset();
  std::byte byte{};
  EXPECT_EQ(one.receive_some(&byte, 1), -1);
  EXPECT_EQ(one.failure().code, Errc::kPeerLost);
  EXPECT_EQ(one.failure().suspect, 5);
  EXPECT_EQ(one.failure().text, "rank 5 on node 2 is gone: it closed the connection");
  EXPECT_EQ(one.send_some(&byte, 1), -1);
}

transport::LinkIdentity identity_of(Round round) { return {round, 2, 0, 0, 1, 1}; }

TEST(Tcp, JoinsTheRightRankAndTurnsOthersAway) {
  auto listener = std::move(transport::TcpListener::open()).value();
  const std::string endpoint = listener->endpoint({"127.0.0.1"});
  Result<std::vector<transport::LinkConnections>> accepted =
      make_error(Errc::kNotFound, "nothing yet");
  std::thread accepting([&] { accepted = listener->accept({identity_of(3)}, in(seconds(30))); });

  // A stranger that says nothing, one that talks HTTP, one of an older round, one with a wrong
  // token.
  const std::size_t port_at = endpoint.find(';') + 1;
  const int port = std::stoi(endpoint.substr(port_at));
  auto silent = std::move(transport::connect_socket("127.0.0.1", port, in(seconds(5)))).value();
  transport::Connection chatty(
      std::move(transport::connect_socket("127.0.0.1", port, in(seconds(5)))).value());
  const std::string request = "GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n";
  EXPECT_TRUE(transport::send_all(chatty, std::as_bytes(std::span(request)), in(seconds(5))));
  std::byte byte{};
  EXPECT_FALSE(transport::receive_all(chatty, {&byte, 1}, in(seconds(5))));
  EXPECT_FALSE(transport::connect_link(endpoint, identity_of(2), in(seconds(5))));
  EXPECT_FALSE(transport::connect_link(endpoint + "1", identity_of(3), in(seconds(5))));

  auto connected = transport::connect_link(endpoint, identity_of(3), in(seconds(30)));
  accepting.join();
  ASSERT_TRUE(connected && accepted);
  byte = std::byte{42};
  EXPECT_TRUE(transport::send_all(connected->data, {&byte, 1}, in(seconds(30))));
  std::byte got{};
  EXPECT_TRUE(transport::receive_all(accepted->front().data, {&got, 1}, in(seconds(30))));
  EXPECT_EQ(got, byte);
}

// Even if it knows the token, which only the workers can read.
TEST(Tcp, AnotherUserIsTurnedAwayAndHoldsUpNobody) {
  if (const char* why = test::no_other_user()) GTEST_SKIP() << why;
  if (const UserGate gate; gate.blind()) GTEST_SKIP() << gate.blind()->message;
  auto listener = std::move(transport::TcpListener::open()).value();
  const std::string endpoint = listener->endpoint({"127.0.0.1"});
  test::OtherUser other([&] {
    std::vector<UniqueFd> silent;
    const int port = std::stoi(endpoint.substr(endpoint.find(';') + 1));
    for (int i = 0; i < 300; ++i) {
      auto socket = transport::connect_socket("127.0.0.1", port, in(seconds(20)));
      if (socket) silent.push_back(std::move(*socket));  // Or else it was cut already.
    }
    ::_exit(transport::connect_link(endpoint, identity_of(3), in(seconds(20))) ? 1 : 0);
  });
  Result<std::vector<transport::LinkConnections>> accepted =
      make_error(Errc::kNotFound, "nothing yet");
  std::thread accepting([&] { accepted = listener->accept({identity_of(3)}, in(seconds(30))); });
  EXPECT_EQ(other.wait(), 0);
  auto connected = transport::connect_link(endpoint, identity_of(3), in(seconds(30)));
  accepting.join();
  EXPECT_TRUE(connected && accepted);
}

TEST(Tcp, DeadlinesNameTheRank) {
  auto listener = std::move(transport::TcpListener::open()).value();
  const auto accepted = listener->accept({identity_of(3)}, in(milliseconds(30)));
  ASSERT_FALSE(accepted);
  EXPECT_EQ(accepted.error().code, Errc::kTimeout);
  EXPECT_THAT(accepted.error().message, HasSubstr("rank 0 on node 0 did not connect to rank 1"));
  EXPECT_THAT(accepted.error().message, HasSubstr("open all TCP ports between the nodes"));
  // Nobody accepts: the connection stands but no answer comes.
  const auto connected = transport::connect_link(listener->endpoint({"127.0.0.1"}), identity_of(3),
                                                 in(milliseconds(30)));
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code, Errc::kTimeout);
  EXPECT_THAT(connected.error().message, HasSubstr("rank 0 cannot connect to rank 1 on node 1"));
  EXPECT_THAT(connected.error().message, HasSubstr("open all TCP ports between the nodes"));
}

// A port behind a firewall, as it seems: the queue of connections to be accepted is full.
TEST(Tcp, SaysOnceThatAPortIsNotReached) {
  auto listener = std::move(transport::TcpListener::open()).value();
  const std::string endpoint = listener->endpoint({"127.0.0.1"});
  const int port = transport::parse_endpoint(endpoint)->port;
  const UniqueFd full(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  listener.reset();
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<std::uint16_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int on = 1;
  ::setsockopt(full.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  ASSERT_EQ(::bind(full.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
  ASSERT_EQ(::listen(full.get(), 0), 0);
  std::vector<UniqueFd> queued;
  while (auto fd = transport::connect_socket("127.0.0.1", port, in(milliseconds(100))))
    queued.push_back(std::move(*fd));
  ::testing::internal::CaptureStderr();
  const auto connected = transport::connect_link(endpoint, identity_of(3), in(seconds(3)),
                                                 EngineKind::kTcp, nullptr, milliseconds(500));
  const std::string said = ::testing::internal::GetCapturedStderr();
  ASSERT_FALSE(connected);
  EXPECT_THAT(said, HasSubstr("ddp: rank 0 cannot connect to rank 1 on node 1"));
  EXPECT_THAT(said, HasSubstr("open all TCP ports between the nodes"));
  EXPECT_EQ(said.find("still trying"), said.rfind("still trying"));
}

TEST(Tcp, TriesTheNextAddress) {
  auto listener = std::move(transport::TcpListener::open()).value();
  std::thread accepting([&] { EXPECT_TRUE(listener->accept({identity_of(0)}, in(seconds(30)))); });
  EXPECT_TRUE(transport::connect_link(listener->endpoint({"no address", "127.0.0.1"}),
                                      identity_of(0), in(seconds(30))));
  accepting.join();
}

TEST(Tcp, EndpointsOfOthersAreChecked) {
  for (const char* text :
       {"", ";", "a;b;c", "127.0.0.1;1", "127.0.0.1;99999999999;1", "127.0.0.1;1;x"}) {
    const auto link = transport::connect_link(text, identity_of(0), in(seconds(1)));
    ASSERT_FALSE(link);
    EXPECT_THAT(link.error().message, HasSubstr("is not the endpoint of a worker")) << text;
  }
}

// The kernel's time limit for a peer that does not answer is also one for a peer that does not
// read.
TEST(Tcp, OnlyControlConnectionsHaveATimeLimitOfTheKernel) {
  auto listener = std::move(transport::TcpListener::open()).value();
  Result<std::vector<transport::LinkConnections>> accepted =
      make_error(Errc::kNotFound, "nothing yet");
  std::thread accepting([&] { accepted = listener->accept({identity_of(0)}, in(seconds(30))); });
  auto connected =
      transport::connect_link(listener->endpoint({"127.0.0.1"}), identity_of(0), in(seconds(30)));
  accepting.join();
  ASSERT_TRUE(connected && accepted);
  for (const transport::LinkConnections* end : {&*connected, &accepted->front()}) {
    EXPECT_EQ(test::kernels_time_limit(end->data.fd()), milliseconds(0));
    EXPECT_EQ(test::kernels_time_limit(end->control.fd()), milliseconds(30'000));
  }
}

// Two sockets that are connected over TCP.
std::pair<UniqueFd, UniqueFd> tcp_pair() {
  const UniqueFd listener = std::move(transport::listen_anywhere()).value();
  const int port = transport::local_port(listener.get()).value();
  UniqueFd one = std::move(transport::connect_socket("127.0.0.1", port, in(seconds(30)))).value();
  pollfd entry{listener.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 30'000), 1);
  return {std::move(one), UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC))};
}

// Until the stream takes no more, or has ended.
void send_all_it_takes(transport::SocketStream& stream) {
  const std::vector<std::byte> bytes(std::size_t{1} << 20);
  while (stream.send_some(bytes.data(), bytes.size()) > 0) {
  }
}

TEST(Tcp, AStreamEndsIfItsWayIsCutButNotIfItsPeerDoesNotRead) {
  auto [to_reader, unread] = tcp_pair();
  auto [to_nowhere, unreached] = tcp_pair();
  sock_filter nothing[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
  const sock_fprog drop{1, nothing};  // Before the kernel answers.
  ASSERT_EQ(::setsockopt(unreached.get(), SOL_SOCKET, SO_ATTACH_FILTER, &drop, sizeof(drop)), 0);
  const milliseconds limit(500);
  transport::SocketStream full(std::move(to_reader), limit);
  transport::SocketStream cut(std::move(to_nowhere), limit);
  const TimePoint deadline = in(seconds(120));
  const TimePoint long_enough = in(10 * limit);
  while ((cut.how().empty() || Clock::now() < long_enough) && Clock::now() < deadline) {
    for (transport::SocketStream* stream : {&full, &cut}) send_all_it_takes(*stream);
    pollfd entries[2];
    const int count = full.poll_entries(entries);
    ::poll(entries, static_cast<nfds_t>(count + cut.poll_entries(entries + count)), 50);
  }
  EXPECT_THAT(cut.how(), HasSubstr("timed out"));
  EXPECT_EQ(full.how(), "");
}

TEST(Tcp, FindsAnAddressOfThisMachine) {
  const auto addresses = transport::reachable_addresses("127.0.0.1", 1);
  ASSERT_FALSE(addresses.empty());
  EXPECT_EQ(addresses.front(), "127.0.0.1");
}

TEST(Transport, DeadlineEndsAWaitInEveryStage) {
  auto transports = test::make_inproc_transports({2}, 0);
  for (const milliseconds time : {milliseconds(0), milliseconds(1), milliseconds(50)}) {
    const auto failure =
        transports[0]->drive(in(time), [] { return transport::Advance::kBlocked; });
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->code, Errc::kTimeout);
  }
}

TEST(Transport, AFlagWakesASleeper) {
  auto transports = test::make_inproc_transports({2}, 0);
  transport::Segment& segment = transports[0]->segment();
  std::thread publishing([&] {
    // Only once the other rank sleeps, so that the bell is what wakes it.
    while (segment.doorbell(0).sleepers.load() == 0) std::this_thread::yield();
    transports[1]->publish(transport::Flag::kIn, 1);
  });
  const auto failure = transports[0]->drive(in(seconds(30)), [&] {
    return transports[0]->reached(1, transport::Flag::kIn, 1) ? transport::Advance::kDone
                                                              : transport::Advance::kBlocked;
  });
  publishing.join();
  EXPECT_FALSE(failure);
  EXPECT_EQ(segment.doorbell(0).bell.load(), 1U);
  EXPECT_EQ(segment.doorbell(0).sleepers.load(), 0U);
}

TEST(Transport, WhatWasGivenBeforeAnAbortIsTaken) {
  using Touches = transport::Transport::Touches;
  for (const Touches touches : {Touches::kOwnMemory, Touches::kOthersMemory}) {
    auto transports = test::make_inproc_transports({2}, 0);
    int looks = 0;
    const auto step = [&] {
      const bool there = transports[0]->reached(1, transport::Flag::kIn, 1);
      if (++looks == 1) {
        // Right after the look, the other rank completes the operation and dies.
        transports[1]->publish(transport::Flag::kIn, 1);
        transports[1]->raise_abort({Errc::kPeerLost, 1, "rank 1 died"});
      }
      return there ? transport::Advance::kDone : transport::Advance::kBlocked;
    };
    const auto failure = transports[0]->drive(in(seconds(30)), step, touches);
    if (touches == Touches::kOwnMemory) {
      EXPECT_FALSE(failure) << failure->text;
      EXPECT_EQ(looks, 2);
    } else {
      ASSERT_TRUE(failure);
      EXPECT_EQ(failure->text, "rank 1 died");
      EXPECT_EQ(looks, 1);
    }
  }
}

TEST(Transport, WhatIsMissingAfterAnAbortIsItsFailure) {
  auto transports = test::make_inproc_transports({2}, 0);
  transports[1]->raise_abort({Errc::kPeerLost, 1, "rank 1 died"});
  const auto failure = transports[0]->drive(
      in(seconds(30)), [] { return transport::Advance::kBlocked; },
      transport::Transport::Touches::kOwnMemory);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->text, "rank 1 died");
}

TEST(Transport, AStepsFailureIsTheOutcome) {
  auto transports = test::make_inproc_transports({1}, 0);
  const auto failure = transports[0]->drive(in(seconds(1)), [&] {
    return transports[0]->fail({Errc::kProtocol, 3, "broken"});
  });
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->text, "broken");
  EXPECT_EQ(transports[0]->shut_down(*failure).text, "broken");
  EXPECT_EQ(transports[0]->check()->text, "broken");
}

}  // namespace
}  // namespace ddp
