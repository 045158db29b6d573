// A trace at the daemon's port, over real sockets.
#include "launcher/server/trace_feed.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/auth/crypto_library.h"
#include "common/wire/rendezvous_messages.h"
#include "launcher/server/trace_sink.h"
#include "tests/support/raw_agent.h"
#include "tests/support/raw_client.h"
#include "tests/support/server_thread.h"
#include "tests/support/temp_dir.h"

namespace ddp::server {
namespace {

using nlohmann::json;
using test::RawAgent;
using test::RawClient;
using test::ServerThread;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kEvent = "{\"ph\":\"X\",\"name\":\"of the worker\"},\n";

std::string refusal(int port, const std::string& target) {
  RawClient client(port);
  client.send(fmt::format("GET {} HTTP/1.1\r\n\r\n", target));
  return client.receive_all();
}

wire::Join joining(const std::string& node_id, int nodes, const std::string& job_id = "job") {
  wire::Join join;
  join.job_id = job_id;
  join.node_id = node_id;
  join.host = node_id;
  join.rules.min_nodes = join.rules.max_nodes = nodes;
  return join;
}

// A reader of /trace, until it has seen this text.
class Reader {
 public:
  explicit Reader(int port) : client_(port) { client_.send("GET /trace?job=job HTTP/1.1\r\n\r\n"); }
  std::string until(const std::string& text) {
    while (received_.find(text) == std::string::npos) {
      const std::string more = client_.receive_some();
      if (more.empty()) break;
      received_ += more;
    }
    return received_;
  }
  std::string all() { return received_ + client_.receive_all(); }

 private:
  RawClient client_;
  std::string received_;
};

TEST(TraceFeed, PassesOnWhatAgentsTellAndWhatTheJobHasBeenThrough) {
  const ServerThread server;
  RawAgent agent(server.port());
  agent.send(joining("n0", 1));
  ASSERT_TRUE(agent.receive<wire::RoundStart>());
  Reader reader(server.port());
  const auto first = agent.receive<wire::ReadTrace>();
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->names);
  EXPECT_EQ(first->answered_ns, 0);
  EXPECT_GT(first->sent_ns, first->zero_ns);
  agent.send(wire::TraceEvents{.events = kEvent, .lost = 3, .sent_ns = 77});
  // The times of the answer come back with the next question.
  const auto second = agent.receive<wire::ReadTrace>();
  ASSERT_TRUE(second);
  EXPECT_FALSE(second->names);
  EXPECT_EQ(second->answered_ns, 77);
  EXPECT_GE(second->received_ns, first->sent_ns);
  EXPECT_GE(second->sent_ns, second->received_ns);
  agent.send(wire::Succeeded{.round = 0});
  const std::string answer = reader.all();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  const json events = json::parse(answer.substr(answer.find("\r\n\r\n") + 4));
  std::vector<std::string> names;
  for (const json& event : events) names.push_back(event.at("name"));
  EXPECT_THAT(names, testing::IsSupersetOf({"ranks", "of the worker", "round 0", "trace_end",
                                            "3 spans were not read in time"}));
  EXPECT_EQ(events.at(0).at("args").at("name"), "job job");
}

// Its first steps would be missing.
TEST(TraceFeed, AgentsAreAskedBeforeARoundBegins) {
  const ServerThread server;
  RawAgent first(server.port());
  first.send(joining("n0", 2));
  ASSERT_TRUE(first.receive<wire::Waiting>());
  Reader reader(server.port());
  ASSERT_TRUE(first.receive<wire::ReadTrace>());
  first.send(wire::TraceEvents{.events = kEvent});
  reader.until("of the worker");  // So it is traced.
  RawAgent second(server.port());
  second.send(joining("n1", 2));
  ASSERT_TRUE(second.receive<wire::Welcome>());
  // No other message comes before RoundStart that is one of these.
  EXPECT_TRUE(second.receive<wire::ReadTrace>());
  EXPECT_TRUE(second.receive<wire::RoundStart>());
}

TEST(TraceFeed, ALaterReaderGetsTheNamesToo) {
  const ServerThread server;
  RawAgent agent(server.port());
  agent.send(joining("n0", 1));
  ASSERT_TRUE(agent.receive<wire::RoundStart>());
  Reader reader(server.port());
  ASSERT_TRUE(agent.receive<wire::ReadTrace>());
  agent.send(wire::TraceEvents{.events = kEvent});
  reader.until("of the worker");
  Reader later(server.port());
  while (!agent.receive<wire::ReadTrace>()->names) agent.send(wire::TraceEvents{});
  agent.send(wire::TraceEvents{.events = kEvent});
  EXPECT_THAT(later.until("of the worker"), HasSubstr("\"job job\""));
}

TEST(TraceFeed, SaysWhyThereIsNone) {
  const ServerThread server;
  EXPECT_THAT(refusal(server.port(), "/trace"),
              AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("no such job runs now")));
  RawAgent agent(server.port());
  agent.send(joining("n0", 1));
  ASSERT_TRUE(agent.receive<wire::RoundStart>());
  EXPECT_THAT(refusal(server.port(), "/trace?job=another"), StartsWith("HTTP/1.1 404 "));
  RawAgent other(server.port());
  other.send(joining("n0", 1, "other"));
  ASSERT_TRUE(other.receive<wire::RoundStart>());
  EXPECT_THAT(refusal(server.port(), "/trace"),
              AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr("name one: job, other")));
}

TEST(TraceFeed, AJobWithATokenWantsIt) {
  ASSERT_TRUE(auth::CryptoLibrary::load());
  ServerOptions options;
  options.token = Secret("the token of this test");
  const ServerThread server(options);
  EXPECT_THAT(refusal(server.port(), "/trace"), StartsWith("HTTP/1.1 401 "));
}

TEST(TraceFile, EndsOnceWithWhatWentWrong) {
  const test::TempDir folder;
  std::vector<std::string> ends;
  const auto on_end = [&](const std::string& error) { ends.push_back(error); };
  TraceFile unwritable(folder.path() / "none" / "file", 0, on_end);
  unwritable.write(kEvent);
  unwritable.write(kEvent);
  unwritable.finish();
  EXPECT_THAT(ends, testing::ElementsAre("No such file or directory"));
  EXPECT_FALSE(unwritable.is_open());
  ends.clear();
  TraceFile empty(folder.path() / "empty", 0, on_end);
  empty.finish();
  EXPECT_THAT(ends, testing::ElementsAre("nothing was traced"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "empty"));
  ends.clear();
  TraceFile full("/dev/full", 0, on_end);
  full.write(kEvent);
  EXPECT_THAT(ends, testing::ElementsAre("No space left on device"));
  ends.clear();
  TraceFile whole(folder.path() / "whole", 0, on_end);
  whole.write(kEvent);
  EXPECT_EQ(folder.read("whole"), std::string("[\n") + kEvent);  // At once: a kill loses nothing.
  whole.finish();
  EXPECT_THAT(ends, testing::ElementsAre(""));
  EXPECT_EQ(json::parse(folder.read("whole")).size(), 2U);
}

}  // namespace
}  // namespace ddp::server
