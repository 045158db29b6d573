// The daemon over real sockets: our own store client, agents, HTTP. Raw store clients are in
// store_front_test.cc.
#include "launcher/server/server.h"

#include <atomic>

#include <gtest/gtest.h>

#include "common/base/clock.h"
#include "common/store/tcp_store.h"
#include "common/wire/c10d.h"
#include "common/wire/frame.h"
#include "tests/support/process.h"
#include "tests/support/raw_agent.h"
#include "tests/support/raw_client.h"
#include "tests/support/server_thread.h"
#include "tests/support/store_request.h"

namespace ddp::server {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): deadlines of tests.
using test::number_bytes;
using test::RawAgent;
using test::RawClient;
using test::request_bytes;
using test::ServerThread;
using wire::c10d::Dialect;
using wire::c10d::Op;

TEST(ServerStoreTest, SixtyFourClientsAtOnce) {
  const ServerThread server;
  constexpr int kClients = 64, kRounds = 20;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kClients; ++rank) {
    threads.emplace_back([rank, port = server.port()] {
      auto store = connect_tcp_store("localhost", port, 20s).value();
      for (int round = 0; round < kRounds; ++round) {
        const std::string prefix = std::to_string(round) + "/";
        ASSERT_TRUE(store->set(prefix + std::to_string(rank), std::string(100, 'v')));
        // The last one opens the door for all.
        if (store->add(prefix + "count", 1).value() == kClients) {
          ASSERT_TRUE(store->set(prefix + "open", ""));
        }
        const Result<void> opened = store->wait({prefix + "open"}, 20s);
        ASSERT_TRUE(opened) << opened.error().message;
        const int neighbour = (rank + 1) % kClients;
        ASSERT_EQ(store->get(prefix + std::to_string(neighbour), 20s).value().size(), 100u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  auto store = connect_tcp_store("127.0.0.1", server.port(), 20s).value();
  EXPECT_EQ(store->num_keys().value(), kRounds * (kClients + 2));
}

TEST(ServerStoreTest, TheClientRefusesWhatAPyTorchServerWouldCloseFor) {
  const ServerThread server;
  auto store = connect_tcp_store("127.0.0.1", server.port(), 20s).value();
  EXPECT_EQ(store->set(std::string(8'192, 'k'), "").error().code, Errc::kInvalidArgument);
  EXPECT_EQ(store->set("k", std::string((8u << 20) + 1, 'v')).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(store->check(std::vector<std::string>(131'073, "k")).error().code,
            Errc::kInvalidArgument);
  const std::string largest(8u << 20, 'v');
  ASSERT_TRUE(store->set(std::string(8'191, 'k'), largest));
  EXPECT_EQ(store->get(std::string(8'191, 'k'), 20s).value(), largest);
}

TEST(ServerTest, TheSamePortIsFreeAtOnceAndTakenWhileServed) {
  auto server = std::make_unique<ServerThread>();
  const int port = server->port();
  asio::io_context io;
  ServerOptions options;
  options.bind_address = "127.0.0.1";
  options.port = port;
  const auto second = Server::listen(io, options);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Errc::kExists);
  EXPECT_NE(second.error().message.find(std::to_string(port)), std::string::npos);
  RawClient client(port);
  client.send(std::string(1, '\x06'));
  EXPECT_EQ(client.receive(8), number_bytes(0));
  server.reset();
  const ServerThread again(options);
  EXPECT_EQ(again.port(), port);
}

std::string http(int port, const std::string& request) {
  RawClient client(port);
  client.send(request);
  return client.receive_all();
}

TEST(ServerHttpTest, AnswersPeopleAndPrometheus) {
  const ServerThread server;
  auto store = connect_tcp_store("127.0.0.1", server.port(), 20s).value();
  ASSERT_TRUE(store->add("k", 1));
  const std::string status = http(server.port(), "GET /status HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(status.starts_with("HTTP/1.1 200 OK\r\n")) << status;
  EXPECT_NE(status.find("application/json"), std::string::npos);
  EXPECT_NE(status.find("\"jobs\""), std::string::npos) << status;
  const std::string metrics = http(server.port(), "GET /metrics?x=1 HTTP/1.0\r\n\r\n");
  EXPECT_NE(metrics.find("\nddp_store_keys 1\n"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("\nddp_store_connections 1\n"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("\nddp_agents 0\n"), std::string::npos) << metrics;
  const std::string head = http(server.port(), "HEAD /status HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(head.starts_with("HTTP/1.1 200 OK\r\n"));
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
}

TEST(ServerHttpTest, RefusesWhatItDoesNotHave) {
  const ServerThread server;
  const auto first_line = [&](const std::string& request) {
    const std::string answer = http(server.port(), request);
    return answer.substr(0, answer.find("\r\n"));
  };
  EXPECT_EQ(first_line("GET /nothing HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
  EXPECT_EQ(first_line("GETS /status HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
  EXPECT_EQ(first_line("GET /status\r\n\r\n"), "HTTP/1.1 400 Bad Request");
  EXPECT_EQ(first_line("GET /" + std::string(9'000, 'x')),
            "HTTP/1.1 431 Request Header Fields Too Large");
}

wire::Join join_of_one(const std::string& job_id, const std::string& node_id) {
  wire::Join join;
  join.job_id = job_id;
  join.node_id = node_id;
  join.host = node_id;
  join.rules.max_restarts = 3;
  join.rules.lease_ms = 3'600'000;  // They seldom say anything more, however slow this is.
  return join;
}

TEST(ServerAgentTest, RunsAJobOfOneNodeToItsEnd) {
  ServerThread server;
  std::atomic<int> finished{0};
  std::atomic<bool> drained{false};
  server.call([&] {
    server.server().on_job_finished([&](const std::string& job_id, const wire::Finish& finish) {
      EXPECT_EQ(job_id, "job");
      EXPECT_EQ(finish.exit_code, 0);
      ++finished;
    });
  });
  {
    RawAgent agent(server.port());
    agent.send(join_of_one("job", "n0"));
    ASSERT_TRUE(agent.receive<wire::Welcome>());
    const auto start = agent.receive<wire::RoundStart>();
    ASSERT_TRUE(start);
    EXPECT_EQ(start->master_port, server.port()) << "the daemon's own store";
    EXPECT_EQ(start->members.at(0).address, "127.0.0.1") << "the connection's source address";
    agent.send(wire::Succeeded{start->round});
    ASSERT_TRUE(agent.receive<wire::Finish>());
    server.call([&] { server.server().drain(20s, [&] { drained = true; }); });
  }
  EXPECT_TRUE(test::wait_until([&] { return drained.load(); }, 20s));
  EXPECT_EQ(finished, 1);
}

TEST(ServerAgentTest, EveryRoundGetsAFreshStoreWhereThatIsWanted) {
  for (const bool fresh : {true, false}) {
    ServerOptions options;
    options.fresh_store_each_round = fresh;
    ServerThread server(options);
    RawAgent agent(server.port());
    agent.send(join_of_one("job", "n0"));
    auto start = agent.receive<wire::RoundStart>();
    ASSERT_TRUE(start);
    RawClient worker(server.port());
    worker.send(request_bytes(Op::kSet, "k", "v") + std::string(1, '\x06'));
    ASSERT_EQ(worker.receive(8), number_bytes(1));
    wire::WorkerFailed failed;
    failed.round = start->round;
    failed.failure.exit_code = 1;
    failed.failure.rank = 0;
    agent.send(failed);
    ASSERT_TRUE(agent.receive<wire::Stop>());
    agent.send(wire::Stopped{start->round, {}});
    start = agent.receive<wire::RoundStart>();
    ASSERT_TRUE(start);
    EXPECT_EQ(start->round, 1);
    if (fresh) {
      EXPECT_TRUE(worker.is_closed_by_peer());
    }
    RawClient successor(server.port());
    successor.send(std::string(1, '\x06'));
    EXPECT_EQ(successor.receive(8), number_bytes(fresh ? 0 : 1));
  }
}

TEST(ServerAgentTest, AFrameThatIsNoMessageClosesThatAgentOnly) {
  const ServerThread server;
  RawAgent good(server.port());
  RawAgent bad(server.port());
  bad.send_frame("not json");
  EXPECT_TRUE(bad.is_closed());
  good.send(join_of_one("job", "n0"));
  EXPECT_TRUE(good.receive<wire::Welcome>());
}

// What it says comes back in messages, which have the same limit.
TEST(ServerAgentTest, AJoinAsLargeAsAFrameClosesThatAgentOnly) {
  const ServerThread server;
  RawAgent bad(server.port());
  std::string join = R"({"type":"join","job_id":"job","node_id":"n0","release":""})";
  join.insert(join.size() - 2, std::string(wire::kMaxFrameBytes - join.size(), 'x'));
  bad.send_frame(join);
  EXPECT_TRUE(bad.receive<wire::Refused>());
  EXPECT_TRUE(bad.is_closed());
  RawAgent good(server.port());
  good.send(join_of_one("job", "n1"));
  EXPECT_TRUE(good.receive<wire::RoundStart>());
}

TEST(ServerAgentTest, ALostConnectionIsALostNodeAtOnce) {
  const ServerThread server;
  RawAgent stays(server.port());
  RawAgent goes(server.port());
  for (auto [agent, name] : {std::pair(&stays, "n0"), std::pair(&goes, "n1")}) {
    wire::Join join = join_of_one("job", name);
    join.rules.min_nodes = join.rules.max_nodes = 2;
    agent->send(join);
    ASSERT_TRUE(agent->receive<wire::Welcome>());
  }
  ASSERT_TRUE(stays.receive<wire::RoundStart>());
  ASSERT_TRUE(goes.receive<wire::RoundStart>());
  goes.reset();
  EXPECT_TRUE(stays.receive<wire::Stop>());
}

TEST(ServerAgentTest, EndJobReachesTheAgents) {
  ServerThread server;
  RawAgent agent(server.port());
  agent.send(join_of_one("job", "n0"));
  ASSERT_TRUE(agent.receive<wire::RoundStart>());
  server.call([&] { server.server().end_job("job", 130, "interrupted"); });
  const auto finish = agent.receive<wire::Finish>();
  ASSERT_TRUE(finish);
  EXPECT_EQ(finish->exit_code, 130);
}

TEST(ServerAgentTest, TheServerMayBeDestroyedWithEveryKindOfConnectionOpen) {
  auto server = std::make_unique<ServerThread>();
  RawAgent agent(server->port());
  agent.send(join_of_one("job", "n0"));
  ASSERT_TRUE(agent.receive<wire::RoundStart>());
  RawClient silent(server->port()), waiting(server->port()), http_half(server->port());
  waiting.send(request_bytes(Op::kWait, "k"));
  http_half.send("GET /sta");
  RawClient probe(server->port());
  probe.send(std::string(1, '\x06'));
  EXPECT_EQ(probe.receive(8).size(), 8u);
  server.reset();
  EXPECT_TRUE(silent.is_closed_by_peer());
  EXPECT_TRUE(waiting.is_closed_by_peer());
  EXPECT_TRUE(http_half.is_closed_by_peer());
}

}  // namespace
}  // namespace ddp::server
