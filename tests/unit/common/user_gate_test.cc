// Whose a TCP connection is: the bytes that the kernel is asked with, and real connections.
#include "common/process/user_gate.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>

#include "common/process/abstract_socket.h"
#include "common/process/socket_diag.h"
#include "tests/support/listener.h"
#include "tests/support/other_user.h"
#include "tests/support/process.h"
#include "tests/support/raw_client.h"

namespace ddp {
namespace {

using test::ListeningSocket;
using test::OtherUser;
using test::RawClient;
using Verdict = UserGate::Verdict;

sockaddr_storage v4(const char* text, int port) {
  sockaddr_storage all{};
  auto& address = reinterpret_cast<sockaddr_in&>(all);
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  EXPECT_EQ(::inet_pton(AF_INET, text, &address.sin_addr), 1);
  return all;
}

sockaddr_storage v6(const char* text, int port, std::uint32_t scope = 0) {
  sockaddr_storage all{};
  auto& address = reinterpret_cast<sockaddr_in6&>(all);
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(static_cast<std::uint16_t>(port));
  address.sin6_scope_id = scope;
  EXPECT_EQ(::inet_pton(AF_INET6, text, &address.sin6_addr), 1);
  return all;
}

template <typename Body>
std::string message(std::uint16_t type, std::uint32_t number, const Body& body) {
  nlmsghdr header{};
  header.nlmsg_len = NLMSG_LENGTH(sizeof(body));
  header.nlmsg_type = type;
  header.nlmsg_seq = number;
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) +
         std::string(reinterpret_cast<const char*>(&body), sizeof(body));
}

TEST(SocketDiag, MappedAddressesAreThoseOfIPv4) {
  const auto mapped = tcp_ends(v6("::ffff:127.0.0.1", 80), v6("::ffff:127.0.0.9", 4711, 7));
  const auto plain = tcp_ends(v4("127.0.0.1", 80), v4("127.0.0.9", 4711));
  ASSERT_TRUE(mapped && plain);
  EXPECT_EQ(mapped->family, AF_INET);
  EXPECT_EQ(std::memcmp(&mapped->local, &plain->local, sizeof(in6_addr)), 0);
  EXPECT_EQ(std::memcmp(&mapped->remote, &plain->remote, sizeof(in6_addr)), 0);
  EXPECT_EQ(mapped->remote_port, htons(4711));
  EXPECT_TRUE(is_loopback(*mapped));
  EXPECT_FALSE(is_loopback(*tcp_ends(v4("127.0.0.1", 80), v4("10.0.0.1", 1))));
  EXPECT_TRUE(is_loopback(*tcp_ends(v6("::1", 80), v6("::1", 1))));
  EXPECT_FALSE(is_loopback(*tcp_ends(v6("::1", 80), v6("fd00::1", 1))));
  EXPECT_FALSE(tcp_ends(v4("127.0.0.1", 80), v6("::1", 1)));
  EXPECT_FALSE(tcp_ends(sockaddr_storage{}, sockaddr_storage{}));
}

TEST(SocketDiag, TheQueryNamesTheSocketByItsEnds) {
  const auto ends = tcp_ends(v6("fe80::1", 80), v6("fe80::2", 4711, 3));
  const std::string bytes = socket_query(other_way(*ends), 42);
  ASSERT_EQ(bytes.size(), NLMSG_LENGTH(sizeof(inet_diag_req_v2)));
  nlmsghdr header{};
  inet_diag_req_v2 query{};
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::memcpy(&query, bytes.data() + NLMSG_HDRLEN, sizeof(query));
  EXPECT_EQ(header.nlmsg_len, bytes.size());
  EXPECT_EQ(header.nlmsg_seq, 42u);
  EXPECT_EQ(header.nlmsg_flags & NLM_F_DUMP, 0) << "only one socket is asked for";
  EXPECT_EQ(query.sdiag_family, AF_INET6);
  EXPECT_EQ(query.id.idiag_sport, htons(4711));
  EXPECT_EQ(query.id.idiag_dport, htons(80));
  EXPECT_EQ(std::memcmp(query.id.idiag_src, &ends->remote, sizeof(in6_addr)), 0);
  EXPECT_EQ(std::memcmp(query.id.idiag_dst, &ends->local, sizeof(in6_addr)), 0);
  EXPECT_EQ(query.id.idiag_if, 3u);
}

TEST(SocketDiag, AnswersAreReadAndOthersAreNot) {
  inet_diag_msg body{};
  body.idiag_state = TCP_ESTABLISHED;
  body.idiag_uid = 1'000;
  body.idiag_inode = 7;
  const std::string right = message(SOCK_DIAG_BY_FAMILY, 5, body);
  const auto socket = socket_answer(right, 5);
  ASSERT_TRUE(socket);
  EXPECT_EQ(socket->state, TCP_ESTABLISHED);
  EXPECT_EQ(socket->user, 1'000u);
  EXPECT_EQ(socket->inode, 7u);
  EXPECT_EQ(socket_answer(right, 6).error().code, Errc::kStale);
  for (std::size_t size = 0; size < right.size(); ++size)
    EXPECT_FALSE(socket_answer(std::string_view(right).substr(0, size), 5)) << size;
  EXPECT_EQ(socket_answer(message(RTM_NEWROUTE, 5, body), 5).error().code, Errc::kProtocol);

  nlmsgerr failure{};
  failure.error = -ENOENT;
  EXPECT_EQ(socket_answer(message(NLMSG_ERROR, 5, failure), 5).error().code, Errc::kNotFound);
  failure.error = -EPERM;
  EXPECT_EQ(socket_answer(message(NLMSG_ERROR, 5, failure), 5).error().code, Errc::kIo);
  EXPECT_EQ(socket_answer(message(NLMSG_ERROR, 6, failure), 5).error().code, Errc::kStale);

  rtmsg route{};
  route.rtm_type = RTN_LOCAL;
  EXPECT_TRUE(route_answer(message(RTM_NEWROUTE, 5, route), 5).value());
  route.rtm_type = RTN_UNICAST;
  EXPECT_FALSE(route_answer(message(RTM_NEWROUTE, 5, route), 5).value());
}

UniqueFd accepted(const ListeningSocket& listener) {
  pollfd entry{listener.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 20'000), 1);
  return UniqueFd(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
}

class UserGateTest : public testing::Test {
 protected:
  void SetUp() override {
    if (gate_.blind()) GTEST_SKIP() << "the kernel does not tell: " << gate_.blind()->message;
  }

  ListeningSocket listener_;
  UserGate gate_;
};

TEST_F(UserGateTest, ThisUsersConnectionsAreKnownAlsoIfOneDirectionIsClosed) {
  RawClient client(listener_.port());
  const UniqueFd connection = accepted(listener_);
  EXPECT_EQ(gate_.judge(connection.get()), Verdict::kOwnUser);
  client.finish();
  EXPECT_EQ(gate_.judge(connection.get()), Verdict::kOwnUser);
  EXPECT_TRUE(admits(Verdict::kOwnUser));
}

// The kernel says of a socket that no process has that it is root's.
TEST_F(UserGateTest, WhoHasClosedIsGoneWhoeverItWas) {
  for (const bool reset : {false, true}) {
    RawClient client(listener_.port());
    client.send("something");
    if (reset) {
      client.reset();
    } else {
      client.close();
    }
    const UniqueFd connection = accepted(listener_);
    EXPECT_EQ(gate_.judge(connection.get()), Verdict::kGone) << reset;
    char byte = 0;
    EXPECT_EQ(::recv(connection.get(), &byte, 1, 0), 1) << "its bytes are there nonetheless";
  }
  EXPECT_FALSE(admits(Verdict::kGone));
}

TEST_F(UserGateTest, AnotherUserIsTold) {
  if (const char* why = test::no_other_user()) GTEST_SKIP() << why;
  for (const int family : {AF_INET, AF_INET6}) {
    const ListeningSocket listener(family);
    OtherUser other([&] { RawClient(listener.port(), 0, family).receive_all(); });
    UniqueFd connection = accepted(listener);
    EXPECT_EQ(gate_.judge(connection.get()), Verdict::kOtherUser) << family;
    EXPECT_EQ(gate_.other_user(), test::kOtherUser);
    cut(std::move(connection));
    EXPECT_EQ(other.wait(), 0);
  }
  EXPECT_FALSE(admits(Verdict::kOtherUser));
}

TEST_F(UserGateTest, AMappedAddressIsNoDisguise) {
  if (const char* why = test::no_other_user()) GTEST_SKIP() << why;
  const ListeningSocket both(AF_INET6, true);
  OtherUser other([&] { RawClient(both.port()).receive_all(); });
  UniqueFd connection = accepted(both);
  EXPECT_EQ(gate_.judge(connection.get()), Verdict::kOtherUser);
  cut(std::move(connection));
  RawClient client(both.port());
  EXPECT_EQ(gate_.judge(accepted(both).get()), Verdict::kOwnUser);
}

// A socket that is bound to a device, which everybody may do, is not found, and its address looks
// like another machine's. In a network namespace of its own, so that there is such an address.
TEST_F(UserGateTest, AnotherAddressOfThisMachineIsNoDisguise) {
  if (const char* why = test::no_other_user()) GTEST_SKIP() << why;
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNET) != 0) ::_exit(77);
    const UniqueFd control(::socket(AF_INET, SOCK_DGRAM, 0));
    ifreq request{};
    std::strcpy(request.ifr_name, "lo");
    request.ifr_flags = IFF_UP;
    ::ioctl(control.get(), SIOCSIFFLAGS, &request);
    std::strcpy(request.ifr_name, "lo:1");
    const sockaddr_storage address = v4("10.9.9.1", 0);
    std::memcpy(&request.ifr_addr, &address, sizeof(request.ifr_addr));
    if (::ioctl(control.get(), SIOCSIFADDR, &request) != 0) ::_exit(77);
    const ListeningSocket listener;
    UserGate gate;
    int failures = gate.blind() ? 1 : 0;
    for (const bool hidden : {false, true}) {
      const UniqueFd client(::socket(AF_INET, SOCK_STREAM, 0));
      if (hidden) ::setsockopt(client.get(), SOL_SOCKET, SO_BINDTODEVICE, "lo", 3);
      ::bind(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(sockaddr_in));
      const sockaddr_storage server = v4("127.0.0.1", listener.port());
      ::connect(client.get(), reinterpret_cast<const sockaddr*>(&server), sizeof(sockaddr_in));
      const UniqueFd connection = accepted(listener);
      const Verdict wanted = hidden ? Verdict::kUnknown : Verdict::kOwnUser;
      failures += gate.judge(connection.get()) == wanted ? 0 : 2;
    }
    ::_exit(failures);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no network namespaces here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(UserGateTest, WhoIsCutKeepsNothingOfTheKernel) {
  RawClient client(listener_.port());
  UniqueFd connection = accepted(listener_);
  cut(std::move(connection));
  EXPECT_FALSE(connection);
  EXPECT_EQ(client.receive_all(), "");
  EXPECT_EQ(client.error(), ECONNRESET);
}

TEST(OwnUsers, AUnixSocketsOtherEndIsTold) {
  const std::string name = "ddp-test-own-users-" + std::to_string(::getpid());
  const UniqueFd door(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind_abstract(door.get(), name), 0);
  ASSERT_EQ(::listen(door.get(), 8), 0);
  const auto visit = [&name] {
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return connect_abstract(socket.get(), name) == 0;
  };
  ASSERT_TRUE(visit());
  EXPECT_TRUE(is_own_users(UniqueFd(::accept(door.get(), nullptr, nullptr)).get()));
  if (const char* why = test::no_other_user()) GTEST_SKIP() << why;
  EXPECT_EQ(OtherUser([&] { ::_exit(visit() ? 0 : 1); }).wait(), 0);
  EXPECT_FALSE(is_own_users(UniqueFd(::accept(door.get(), nullptr, nullptr)).get()));
}

}  // namespace
}  // namespace ddp
