// Other users of this machine, who can connect to the daemon's port, get nothing.
#include <poll.h>

#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/unique_fd.h"
#include "common/store/tcp_store.h"
#include "common/wire/frame.h"
#include "common/wire/rendezvous_messages.h"
#include "tests/support/other_user.h"
#include "tests/support/process.h"
#include "tests/support/raw_client.h"
#include "tests/support/server_thread.h"
#include "tests/support/store_request.h"

namespace ddp::server {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): deadlines of tests.
using test::OtherUser;
using test::RawClient;
using test::ServerThread;

std::string agent_bytes() {
  wire::Join join;
  join.job_id = "job";
  join.node_id = "n0";
  join.host = "n0";
  return std::string(wire::kRendezvousPreamble) +
         wire::encode_frame(wire::encode(wire::AgentMessage(join)));
}

const std::string& store_bytes() {
  static const std::string bytes = test::request_bytes(wire::c10d::Op::kSet, "/key", "value") +
                                   test::request_bytes(wire::c10d::Op::kNumKeys, "");
  return bytes;
}

class ServerUsers : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* why = test::no_other_user()) GTEST_SKIP() << why;
    if (const UserGate gate; gate.blind()) GTEST_SKIP() << gate.blind()->message;
  }

  static std::uint64_t refused(ServerThread& server, RefusalReason why) {
    std::uint64_t count = 0;
    server.call([&] { count = server.server().facts().refused[static_cast<std::size_t>(why)]; });
    return count;
  }
  static std::size_t num_connections(ServerThread& server) {
    std::size_t count = 0;
    server.call([&] { count = server.server().facts().connections; });
    return count;
  }
  // Whether another user who sends this gets an answer.
  static bool is_answered(ServerThread& server, const std::string& bytes) {
    OtherUser other([&] {
      RawClient client(server.port());
      client.send(bytes);
      ::_exit(client.receive(1).empty() ? 0 : 1);
    });
    return other.wait() != 0;
  }
};

TEST_F(ServerUsers, AnotherUserGetsNoAnswerInAnyProtocolAndIsCounted) {
  ServerThread server;
  EXPECT_FALSE(is_answered(server, agent_bytes()));
  EXPECT_FALSE(is_answered(server, store_bytes()));
  EXPECT_FALSE(is_answered(server, "GET /status HTTP/1.1\r\n\r\n"));
  EXPECT_EQ(refused(server, RefusalReason::kOtherUser), 3u);
  auto store = connect_tcp_store("127.0.0.1", server.port(), 20s).value();
  EXPECT_EQ(store->check({"key"}).value(), false) << "what it has sent was not done";
}

TEST_F(ServerUsers, ThatItHasClosedBeforeItIsSeenIsNoDisguise) {
  ServerThread server;
  for (const bool reset : {false, true}) {
    std::promise<void> begun;
    std::promise<void> go_on;
    std::thread busy([&] {
      server.call([&] {
        begun.set_value();
        go_on.get_future().wait();
      });
    });
    begun.get_future().wait();
    OtherUser other([&] {
      RawClient client(server.port());
      client.send(store_bytes());
      if (reset) client.reset();
    });
    EXPECT_EQ(other.wait(), 0);
    go_on.set_value();
    busy.join();
  }
  auto store = connect_tcp_store("127.0.0.1", server.port(), 20s).value();
  EXPECT_EQ(store->check({"key"}).value(), false);
  EXPECT_EQ(refused(server, RefusalReason::kNobodys), 2u);
}

TEST_F(ServerUsers, EverybodyIsLetInIfTheUserSaysSo) {
  ServerOptions options;
  options.any_user = true;
  ServerThread server(options);
  EXPECT_TRUE(is_answered(server, agent_bytes()));
  EXPECT_TRUE(is_answered(server, store_bytes()));
  EXPECT_TRUE(is_answered(server, "GET /status HTTP/1.1\r\n\r\n"));
  EXPECT_EQ(refused(server, RefusalReason::kOtherUser), 0u);
}

TEST_F(ServerUsers, AFloodTakesNoConnectionsFromThisUser) {
  ServerOptions options;
  options.max_connections = 4;
  ServerThread server(options);
  // It says that it floods, and floods until it is told to end.
  int ends[2];
  int told[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::pipe(told), 0);
  {
    OtherUser other([&] {
      ::close(ends[1]);
      for (int i = 0; i < 200'000; ++i) {
        RawClient client(server.port());
        client.receive_all();
        if (i == 50 && ::write(told[1], "x", 1) != 1) ::_exit(1);
        pollfd end{ends[0], POLLIN, 0};
        if (::poll(&end, 1, 0) > 0) ::_exit(0);
      }
    });
    UniqueFd end(ends[1]);
    char byte = 0;
    ASSERT_EQ(::read(told[0], &byte, 1), 1);
    for (int i = 0; i < 20; ++i) {
      auto store = connect_tcp_store("127.0.0.1", server.port(), 20s);
      ASSERT_TRUE(store) << store.error().message;
      EXPECT_TRUE((*store)->add("count", 1));
    }
    end.reset();
    EXPECT_EQ(other.wait(), 0);
  }
  EXPECT_GT(refused(server, RefusalReason::kOtherUser), 50u);
  EXPECT_TRUE(test::wait_until([&] { return num_connections(server) == 0; }));
  for (const int fd : {ends[0], told[0], told[1]}) ::close(fd);
}

}  // namespace
}  // namespace ddp::server
