#include "agent/process/store_port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <set>

#include <gtest/gtest.h>

#include "common/base/unique_fd.h"

namespace ddp::agent {
namespace {

// A listening socket as PyTorch's server makes it, at all addresses of both families. It sets
// SO_REUSEADDR: process.system_torch would fail otherwise.
// 0, or the errno.
int listen_at(int port, bool reuse, UniqueFd& socket) {
  socket.reset(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(static_cast<in_port_t>(port));
  const int value = reuse ? 1 : 0;
  const int both = 0;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &value, sizeof(value));
  ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &both, sizeof(both));
  const bool done =
      ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      ::listen(socket.get(), 5) == 0;
  return done ? 0 : errno;
}

TEST(StorePort, IsHeldForRankZeroAndForNobodyElse) {
  StorePort ports;
  const int port = ports.next();
  ASSERT_GT(port, 0);
  EXPECT_EQ(ports.next(), port) << "it is used up by a round only";
  UniqueFd server;
  EXPECT_EQ(listen_at(port, false, server), EADDRINUSE);
  ports.use(port);
  EXPECT_EQ(listen_at(port, true, server), 0);
}

TEST(StorePort, EachRoundHasAnother) {
  StorePort ports;
  std::set<int> seen;
  for (int round = 0; round < 20; ++round) {
    const int port = ports.next();
    EXPECT_TRUE(seen.insert(port).second || round > 1) << port;
    ports.use(port);
    EXPECT_NE(ports.next(), port) << "the round has it";
  }
}

}  // namespace
}  // namespace ddp::agent
