// The page at the daemon's port, and what it asks for, over real sockets.
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/auth/crypto_library.h"
#include "common/wire/rendezvous_messages.h"
#include "launcher/server/http_request.h"
#include "launcher/server/live_feed.h"
#include "tests/support/live_events.h"
#include "tests/support/process.h"
#include "tests/support/raw_agent.h"
#include "tests/support/raw_client.h"
#include "tests/support/server_thread.h"

namespace ddp::server {
namespace {

using nlohmann::json;
using test::http_body;
using test::http_get;
using test::LiveEvents;
using test::RawAgent;
using test::RawClient;
using test::ServerThread;
using testing::HasSubstr;
using testing::StartsWith;

wire::Join join_of(const std::string& node_id, int nproc = 2) {
  wire::Join join;
  join.job_id = "a job&";
  join.node_id = node_id;
  join.host = node_id;
  join.nproc = nproc;
  join.rules.lease_ms = 3'600'000;  // They seldom say anything more, however slow this is.
  return join;
}

// One that runs round 0.
std::unique_ptr<RawAgent> agent_in_round(int port) {
  auto agent = std::make_unique<RawAgent>(port);
  agent->send(join_of("n0"));
  EXPECT_TRUE(agent->receive<wire::RoundStart>());
  return agent;
}

TEST(HttpRequests, AreTakenApart) {
  const auto request = parse_http_request(
      "GET /output?job=a+b%26&rank=3&bad=%zz%4 HTTP/1.1\r\nHost: x:1\r\nauthorization:  Digest "
      "a=b\r\nX: y");
  ASSERT_TRUE(request);
  EXPECT_EQ(request->method, "GET");
  EXPECT_EQ(request->path, "/output");
  EXPECT_EQ(request->target, "/output?job=a+b%26&rank=3&bad=%zz%4");
  EXPECT_EQ(request->host, "x:1");
  EXPECT_EQ(request->value_of("job"), "a b&");
  EXPECT_EQ(request->value_of("rank"), "3");
  EXPECT_EQ(request->value_of("bad"), "%zz%4");
  EXPECT_EQ(request->value_of("jo"), std::nullopt);
  EXPECT_EQ(request->authorization, "Digest a=b");
  for (const char* head : {"", "GET", "GET /", "GET  HTTP/1.1", "GET / HTTP/2", "GET / x HTTP/1.1"})
    EXPECT_FALSE(parse_http_request(head)) << head;
}

// Else a web page of others could read output through a browser on this machine.
TEST(HttpRequests, KnowTheNamesOfThisMachine) {
  HttpRequest request;
  for (const char* host : {"", "localhost", "localhost:29400", "127.0.0.1:1", "[::1]:1"}) {
    request.host = host;
    EXPECT_TRUE(request.names_this_machine()) << host;
  }
  for (const char* host : {"evil.example", "evil.example:1", "localhost.evil.example", "10.0.0.1",
                           "127.evil.example:29400", "127.0.0.1.evil.example", "127.0.0.1.1"}) {
    request.host = host;
    EXPECT_FALSE(request.names_this_machine()) << host;
  }
}

TEST(ServerSite, TheFeedTellsEverythingOnceAndThenWhatChanges) {
  const ServerThread server;
  const auto agent = agent_in_round(server.port());
  LiveEvents events(server.port());
  EXPECT_THAT(events.head(), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(events.head(), HasSubstr("text/event-stream"));
  auto [name, state] = events.next();
  EXPECT_EQ(name, "whole");
  EXPECT_EQ(state.at("jobs").at("a job&").at("nodes").at("n0").at("step"), -1);
  wire::Heartbeat beat;
  beat.step = 4;
  beat.loss = 0.5;
  beat.waits = {"rank 0 has waited 2.0 s in all_reduce #1"};
  beat.saved = {{.round = 0, .step = 3, .bytes = 100, .seconds = 0.5}};
  agent->send(beat);
  // The heartbeat may come after the next tick.
  for (int i = 0; i < 5 && !state.at("jobs").at("a job&").at("nodes").at("n0").contains("loss");
       ++i) {
    const auto [kind, change] = events.next();
    ASSERT_EQ(kind, "change");
    EXPECT_FALSE(change.at("jobs").at("a job&").contains("job_id"));
    state.merge_patch(change);
  }
  const json& job = state.at("jobs").at("a job&");
  EXPECT_EQ(job.at("nodes").at("n0").at("step"), 4);
  EXPECT_EQ(job.at("nodes").at("n0").at("waits").at(0), beat.waits[0]);
  EXPECT_EQ(job.at("checkpoints").at("0/3").at("bytes"), 100);
  LiveEvents second(server.port());
  EXPECT_EQ(second.next().first, "whole");
}

// What it has not taken is kept for it once: later it gets another whole, and not all the changes.
TEST(ServerSite, ABrowserThatDoesNotReadDelaysNobody) {
  const ServerThread server;
  // So much that the kernel does not take it for a connection.
  constexpr std::size_t kMany = 500;
  std::vector<std::unique_ptr<RawAgent>> agents;
  wire::Heartbeat beat;
  beat.waits.assign(32, std::string(400, 'x'));
  for (std::size_t i = 0; i < kMany; ++i) {
    wire::Join join = join_of(fmt::format("n{}", i));
    join.rules.min_nodes = join.rules.max_nodes = 501;
    agents.push_back(std::make_unique<RawAgent>(server.port()));
    agents.back()->send(join);
    agents.back()->send(beat);
  }
  ASSERT_TRUE(test::wait_until(
      [&] { return http_get(server.port(), "/status").size() >= kMany * 32 * 400; }));
  LiveEvents slow(server.port(), 4'096);
  LiveEvents quick(server.port());
  // On a busy machine, even the quick one may take some ticks for a whole.
  const auto first_that_is_no_whole = [](LiveEvents& events) {
    std::string kind = "whole";
    while (kind == "whole") kind = events.next().first;
    return kind;
  };
  EXPECT_EQ(first_that_is_no_whole(quick), "change");
  EXPECT_EQ(quick.next().first, "change");
  EXPECT_EQ(slow.next().first, "whole");
  EXPECT_EQ(slow.next().first, "whole");
  EXPECT_EQ(first_that_is_no_whole(slow), "change");
}

// It gets no more than kLastLimit, and the others get everything.
TEST(LiveFeed, ABrowserThatDoesNotReadHoldsNoEndUp) {
  const std::string much(std::size_t{16} << 20, 'x');
  asio::io_context io;
  asio::ip::tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
  LiveFeed feed(io, [&much] { return json{{"much", much}}; });
  RawClient sleeper(acceptor.local_endpoint().port(), 4'096);
  feed.add(net::ByteStream::create(acceptor.accept(), {}));
  bool is_over = false;
  const TimePoint begun = Clock::now();
  feed.finish([] { return json{{"state", "finished"}}; }, [&is_over] { is_over = true; });
  EXPECT_FALSE(is_over);
  while (!is_over && io.run_one_for(std::chrono::seconds(20)) > 0) continue;
  EXPECT_TRUE(is_over);
  EXPECT_GE(Clock::now() - begun, LiveFeed::kLastLimit);
  EXPECT_EQ(feed.size(), 0u);
  is_over = false;
  feed.finish([] { return json{{"nobody", "asks"}}; }, [&is_over] { is_over = true; });
  EXPECT_TRUE(is_over) << "it waits for nobody";
}

TEST(ServerSite, TooManyBrowsersAreToldSo) {
  const ServerThread server;
  std::vector<std::unique_ptr<LiveEvents>> all;
  for (std::size_t i = 0; i < LiveFeed::kMaxBrowsers; ++i)
    all.push_back(std::make_unique<LiveEvents>(server.port()));
  EXPECT_THAT(all.back()->head(), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(http_get(server.port(), "/live"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(http_get(server.port(), "/status"), StartsWith("HTTP/1.1 200 OK\r\n"));
}

// A daemon of many jobs shows 32 of those that are over.
TEST(ServerSite, ShowsTheJobsThatEndedLast) {
  const ServerThread server;
  for (int number = 0; number < 33; ++number) {
    RawAgent agent(server.port());
    wire::Join join = join_of("n0");
    join.job_id = fmt::format("j{:02}", number);
    agent.send(join);
    ASSERT_TRUE(agent.receive<wire::RoundStart>());
    wire::WorkerFailed failed;
    failed.round = 0;
    failed.failure.node_id = failed.failure.host = "n0";
    failed.failure.exit_code = 3;
    agent.send(failed);
    ASSERT_TRUE(agent.receive<wire::Stop>());
    wire::Stopped stopped;
    stopped.round = 0;
    agent.send(stopped);
    ASSERT_TRUE(agent.receive<wire::Finish>());
  }
  const json jobs = LiveEvents(server.port()).next().second.at("jobs");
  EXPECT_EQ(jobs.size(), 32u);
  EXPECT_EQ(jobs.at("j32").at("exit_code"), 3);
}

TEST(ServerSite, ShowsWhatARankHasWritten) {
  const ServerThread server;
  const auto agent = agent_in_round(server.port());
  RawClient browser(server.port());
  browser.send("GET /output?job=a%20job%26&rank=1 HTTP/1.1\r\n\r\n");
  const auto asked = agent->receive<wire::ShowOutput>();
  ASSERT_TRUE(asked);
  EXPECT_EQ(asked->local_rank, 1);
  agent->send(wire::Output{.id = asked->id + 100, .out = "of nobody", .err = ""});
  // An agent answers only what it was asked.
  RawAgent other(server.port());
  other.send(wire::Output{.id = asked->id, .out = "of another", .err = ""});
  wire::Join join = join_of("n1");
  join.job_id = "b";
  other.send(join);
  ASSERT_TRUE(other.receive<wire::Welcome>());  // So it was read.
  agent->send(wire::Output{.id = asked->id, .out = "a\n", .err = "b\n"});
  EXPECT_EQ(json::parse(http_body(browser.receive_all())), json({{"out", "a\n"}, {"err", "b\n"}}));
}

TEST(ServerSite, SaysWhyThereIsNoOutput) {
  const ServerThread server;
  auto agent = agent_in_round(server.port());
  EXPECT_THAT(http_get(server.port(), "/output?job=a%20job%26&rank=2"),
              StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(http_get(server.port(), "/output?job=b&rank=0"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(http_get(server.port(), "/output?rank=0"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(http_get(server.port(), "/output?job=b&rank=-1"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(http_get(server.port(), "/failure?job=b"), StartsWith("HTTP/1.1 404 "));
  // The agent is lost before it answers.
  RawClient browser(server.port());
  browser.send("GET /output?job=a%20job%26&rank=1 HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(agent->receive<wire::ShowOutput>());
  agent.reset();
  EXPECT_THAT(browser.receive_all(), StartsWith("HTTP/1.1 404 "));
}

TEST(ServerSite, TheFailureIsThereInFull) {
  const ServerThread server;
  const auto agent = agent_in_round(server.port());
  wire::WorkerFailed failed;
  failed.round = 0;
  failed.failure.node_id = failed.failure.host = "n0";
  failed.failure.rank = failed.failure.local_rank = 1;
  failed.failure.exit_code = 3;
  failed.failure.stderr_tail = {"the last words"};
  agent->send(failed);
  ASSERT_TRUE(agent->receive<wire::Stop>());
  const std::string answer = http_get(server.port(), "/failure?job=a%20job%26");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("the last words"));
}

TEST(ServerSite, WithATokenThePageNeedsItAndTheFiguresDoNot) {
  ASSERT_TRUE(auth::CryptoLibrary::load());
  ServerOptions options;
  options.token = Secret("the token of this test");
  ServerThread server(options);
  for (const char* path : {"/", "/live", "/output?job=a&rank=0", "/failure?job=a"}) {
    const std::string answer = http_get(server.port(), path);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 401 Unauthorized\r\n")) << path;
    EXPECT_THAT(answer, HasSubstr("WWW-Authenticate: Digest ")) << path;
    EXPECT_THAT(answer, testing::Not(HasSubstr("the token of"))) << path;
  }
  for (const char* path : {"/status", "/history", "/metrics"})
    EXPECT_THAT(http_get(server.port(), path), StartsWith("HTTP/1.1 200 OK\r\n")) << path;
  const auto refused = [&] {
    std::uint64_t count = 0;
    server.call([&] {
      count = server.server().facts().refused[static_cast<std::size_t>(RefusalReason::kWrongToken)];
    });
    return count;
  };
  EXPECT_EQ(refused(), 0u);  // They have not tried one.
  EXPECT_THAT(http_get(server.port(), "/", "Authorization: Digest username=\"x\"\r\n"),
              StartsWith("HTTP/1.1 401 "));
  EXPECT_EQ(refused(), 1u);
}

TEST(ServerSite, WithoutATokenOutputIsForThisMachineAndTls) {
  HttpRequest request;
  EXPECT_FALSE(Site::may_read_output(request, false));
  EXPECT_TRUE(Site::may_read_output(request, true));
  request.is_secure = true;
  EXPECT_TRUE(Site::may_read_output(request, false));
  request.is_secure = false;
  request.is_here = true;
  EXPECT_TRUE(Site::may_read_output(request, false));
}

}  // namespace
}  // namespace ddp::server
