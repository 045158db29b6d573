// The workers' way to the store of a job with a secret, over real sockets and a real daemon.
#include "agent/shell/store_door.h"

#include <algorithm>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/auth/crypto_library.h"
#include "common/store/tcp_store.h"
#include "common/wire/frame.h"
#include "common/wire/stream_frame.h"
#include "tests/support/certificates.h"
#include "tests/support/process.h"
#include "tests/support/raw_client.h"
#include "tests/support/relay.h"
#include "tests/support/server_thread.h"
#include "tests/support/store_request.h"

namespace ddp::agent {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): deadlines of tests.
using server::ServerOptions;
using test::RawClient;
using test::Relay;
using test::ServerThread;
using test::wait_until;
using testing::HasSubstr;
using testing::Not;
using wire::c10d::Op;

constexpr const char* kToken = "the token of this test";

// An agent's door on a thread of its own.
class DoorThread {
 public:
  DoorThread(const net::Credentials& credentials, int daemon_port)
      : door_(std::make_unique<StoreDoor>(io_, credentials)) {
    port_ = door_->lead_to("127.0.0.1", daemon_port).value();
    thread_ = std::thread([this] { io_.run(); });
  }
  ~DoorThread() {
    asio::post(io_, [this] { door_ = nullptr; });
    asio::post(io_, [this] { io_.stop(); });
    thread_.join();
    io_.restart();
    io_.poll();  // The door has posted that its streams are closed, which lets go of them.
  }
  DoorThread(const DoorThread&) = delete;
  DoorThread& operator=(const DoorThread&) = delete;

  int port() const { return port_; }
  void lead_to(int daemon_port) {
    asio::post(io_, [this, daemon_port] { (void)door_->lead_to("127.0.0.1", daemon_port); });
  }

 private:
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> guard_ = asio::make_work_guard(io_);
  std::unique_ptr<StoreDoor> door_;
  int port_ = 0;
  std::thread thread_;
};

// What passes between a door and its daemon.
class Recording {
 public:
  explicit Recording(int daemon_port)
      : relay_(daemon_port, [this](Relay::Way, std::string_view bytes) {
          const std::lock_guard lock(mutex_);
          heard_ += bytes;
          return true;
        }) {}
  int port() const { return relay_.port(); }
  std::string heard() {
    const std::lock_guard lock(mutex_);
    return heard_;
  }

 private:
  std::mutex mutex_;
  std::string heard_;
  Relay relay_;
};

server::StoreFigures figures(ServerThread& server) {
  server::StoreFigures out;
  server.call([&] { out = server.server().facts().store; });
  return out;
}

class StoreDoorTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(auth::CryptoLibrary::load()); }

  static ServerOptions with_token() {
    ServerOptions options;
    options.token = Secret(kToken);
    return options;
  }
  static net::Credentials credentials() { return {.token = Secret(kToken), .job_id = "job"}; }
  static std::unique_ptr<Store> client(const DoorThread& door) {
    return connect_tcp_store("127.0.0.1", door.port(), 20s).value();
  }
};

TEST_F(StoreDoorTest, WorkersUseTheStoreAndShareOneConnection) {
  ServerThread server(with_token());
  const DoorThread door(credentials(), server.port());
  std::vector<std::unique_ptr<Store>> workers;
  for (int i = 0; i < 8; ++i) workers.push_back(client(door));
  ASSERT_TRUE(workers[0]->set("key", "value"));
  for (const auto& worker : workers) {
    EXPECT_EQ(*worker->get("key", 20s), "value");
    ASSERT_TRUE(worker->add("sum", 1));
  }
  EXPECT_EQ(*workers[3]->get("sum", 20s), "8");
  EXPECT_EQ(figures(server).connections, 8u);
  std::size_t sockets = 0;
  server.call([&] { sockets = server.server().facts().connections - 8; });
  EXPECT_EQ(sockets, 1u) << "one connection for all";
  workers.clear();
  EXPECT_TRUE(wait_until([&] { return figures(server).connections == 0; }));
}

// Larger than the window and than what may wait in a connection, in both directions at once.
TEST_F(StoreDoorTest, LargeValuesArriveWhole) {
  ServerThread server(with_token());
  const DoorThread door(credentials(), server.port());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const auto worker = client(door);
      std::string value(std::size_t{7} << 20, static_cast<char>('a' + i));
      for (std::size_t at = 0; at < value.size(); at += 4099) value[at] = static_cast<char>(at / 7);
      const std::string key = "large" + std::to_string(i);
      const Result<void> set = worker->set(key, value);
      ASSERT_TRUE(set) << set.error().message;
      const Result<std::string> got = worker->get(key, 60s);
      ASSERT_TRUE(got) << got.error().message;
      EXPECT_TRUE(*got == value) << i;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(StoreDoorTest, AWorkerThatDoesNotReadStopsNobodyElse) {
  ServerThread server(with_token());
  const DoorThread door(credentials(), server.port());
  const auto worker = client(door);
  // More together than what may wait in a connection before it is ended.
  const std::size_t size = std::size_t{7} << 20;
  constexpr int kTimes = 12;
  ASSERT_TRUE(worker->set("large", std::string(size, 'x')));
  RawClient lazy(door.port());
  const std::string request = test::request_bytes(Op::kGet, "/large");
  // The daemon answers until enough is unread, then it reads no more of these.
  std::thread asks([&] {
    for (int i = 0; i < kTimes; ++i) {
      if (!lazy.send(request)) return;
    }
  });
  asks.join();
  ASSERT_TRUE(wait_until([&] { return figures(server).connections == 2; }));
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(worker->set("small", std::to_string(i)));
    ASSERT_EQ(*worker->get("small", 20s), std::to_string(i));
  }
  // It gets everything once it reads.
  const std::size_t whole = kTimes * (8 + size);
  EXPECT_EQ(lazy.receive(whole).size(), whole);
}

TEST_F(StoreDoorTest, AWorkerWaitsUntilTheDaemonIsThere) {
  const int port = [] {
    const ServerThread gone(with_token());
    return gone.port();
  }();
  const DoorThread door(credentials(), port);
  RawClient early(door.port());
  early.send(test::request_bytes(Op::kWait, "/key"));
  ServerOptions options = with_token();
  options.port = port;
  ServerThread server(options);
  EXPECT_TRUE(client(door)->set("key", "v"));
  EXPECT_EQ(early.receive(1).size(), 1u) << "the answer to its WAIT";
}

TEST_F(StoreDoorTest, TheDaemonsEndIsSeenByTheWorkers) {
  auto server = std::make_unique<ServerThread>(with_token());
  const DoorThread door(credentials(), server->port());
  RawClient worker(door.port());
  worker.send(test::request_bytes(Op::kWait, "/key"));
  ASSERT_TRUE(wait_until([&] { return figures(*server).connections == 1; }));
  server = nullptr;
  EXPECT_TRUE(worker.is_closed_by_peer());
}

TEST_F(StoreDoorTest, ANewRoundLeadsToItsDaemon) {
  ServerThread first(with_token());
  ServerThread second(with_token());
  DoorThread door(credentials(), first.port());
  ASSERT_TRUE(client(door)->set("of", "first"));
  RawClient old(door.port());
  old.send(test::request_bytes(Op::kWait, "/other"));
  ASSERT_TRUE(wait_until([&] { return figures(first).waits == 1; }));
  door.lead_to(second.port());
  EXPECT_TRUE(wait_until([&] { return figures(first).connections == 0; }));
  ASSERT_TRUE(client(door)->set("of", "second"));
  EXPECT_EQ(figures(second).keys, 1u);
}

TEST_F(StoreDoorTest, AWrongTokenLeadsNowhere) {
  ServerThread server(with_token());
  const DoorThread door({.token = Secret("another token of this test"), .job_id = "job"},
                        server.port());
  EXPECT_FALSE(connect_tcp_store("127.0.0.1", door.port(), 1s));
  EXPECT_EQ(figures(server).connections, 0u);
}

TEST_F(StoreDoorTest, WithTlsARecordingHoldsNoKeyAndNoValue) {
  test::Authority authority;
  authority.issue("node", "IP:127.0.0.1");
  const auto tls = net::TlsContext::create(
                       {authority.certificate("node"), authority.key("node"), authority.ca()})
                       .value();
  for (const bool encrypted : {true, false}) {
    ServerOptions options = with_token();
    net::Credentials own = credentials();
    if (encrypted) {
      options.tls = tls;
      own.tls = tls;
      own.tls_name = "127.0.0.1";
    }
    ServerThread server(options);
    Recording recording(server.port());
    {
      const DoorThread door(own, recording.port());
      const auto worker = client(door);
      ASSERT_TRUE(worker->set("name-of-a-key", "value-of-a-key"));
      ASSERT_EQ(*worker->get("name-of-a-key", 20s), "value-of-a-key");
    }
    const std::string heard = recording.heard();
    EXPECT_THAT(heard, Not(HasSubstr(kToken)));
    EXPECT_EQ(heard.find("name-of-a-key") == std::string::npos, encrypted);
    EXPECT_EQ(heard.find("value-of-a-key") == std::string::npos, encrypted);
  }
}

// Frames that no door sends end the connection, and the daemon goes on.
TEST_F(StoreDoorTest, TheDaemonClosesWhatIsNoStream) {
  using wire::StreamFrame;
  const std::string first =
      std::string(wire::kRendezvousPreamble) + wire::encode_frame(wire::kStoreStreams);
  const auto opened = wire::encode_frame(wire::encode(StreamFrame{StreamFrame::Kind::kOpen, 1}));
  for (const std::string& bad :
       {opened + opened, std::string(wire::encode_frame("\x02")), wire::encode_frame("\x07????"),
        wire::encode_frame(std::string("\x02\x01\0\0\0", 5)),
        wire::encode_frame(std::string("\x03\x01\0\0\0\xff\xff\xff\xff", 9))}) {
    ServerThread server;
    RawClient client(server.port());
    client.send(first + bad);
    EXPECT_EQ(client.receive(wire::kRendezvousPreamble.size()), wire::kRendezvousPreamble);
    EXPECT_TRUE(client.is_closed_by_peer());
    EXPECT_TRUE(connect_tcp_store("127.0.0.1", server.port(), 20s));
  }
}

}  // namespace
}  // namespace ddp::agent
