// A trace at the daemon's port, over real sockets.
#include "launcher/server/trace_feed.h"

#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
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
using test::http_get;
using test::RawAgent;
using test::RawClient;
using test::ServerThread;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kEvent = "{\"ph\":\"X\",\"name\":\"of the worker\"},\n";

wire::Join joining(const std::string& node_id, int nodes, const std::string& job_id = "job") {
  wire::Join join;
  join.job_id = job_id;
  join.node_id = node_id;
  join.host = node_id;
  join.rules.min_nodes = join.rules.max_nodes = nodes;
  join.rules.lease_ms = 3'600'000;  // They seldom say anything more, however slow this is.
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
  EXPECT_THAT(http_get(server.port(), "/trace"),
              AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("no such job runs now")));
  RawAgent agent(server.port());
  agent.send(joining("n0", 1));
  ASSERT_TRUE(agent.receive<wire::RoundStart>());
  EXPECT_THAT(http_get(server.port(), "/trace?job=another"), StartsWith("HTTP/1.1 404 "));
  RawAgent other(server.port());
  other.send(joining("n0", 1, "other"));
  ASSERT_TRUE(other.receive<wire::RoundStart>());
  EXPECT_THAT(http_get(server.port(), "/trace"),
              AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr("name one: job, other")));
}

TEST(TraceFeed, AJobWithATokenWantsIt) {
  ASSERT_TRUE(auth::CryptoLibrary::load());
  ServerOptions options;
  options.token = Secret("the token of this test");
  const ServerThread server(options);
  EXPECT_THAT(http_get(server.port(), "/trace"), StartsWith("HTTP/1.1 401 "));
}

class TraceFileTest : public testing::Test {
 protected:
  std::unique_ptr<TraceFile> file(const std::string& path, std::size_t steps = 0) {
    return std::make_unique<TraceFile>(
        [path] { return path; }, steps,
        [this](const TraceFile::End& end) { ends_.push_back(end.path + ": " + end.error); });
  }
  std::string path(const std::string& name) const { return folder_.path() / name; }

  test::TempDir folder_;
  std::vector<std::string> ends_;
};

TEST_F(TraceFileTest, EndsOnceWithWhatWentWrong) {
  for (const auto& [where, why] :
       {std::pair{path("none/file"), "No such file or directory"},
        std::pair{std::string("/dev/full"), "No space left on device"}}) {
    ends_.clear();
    const auto unwritable = file(where);
    unwritable->write(kEvent);
    unwritable->finish();
    unwritable->finish();
    EXPECT_FALSE(unwritable->is_open());
    EXPECT_THAT(ends_, testing::ElementsAre(where + ": " + why));
  }
}

TEST_F(TraceFileTest, WithoutEventsThereIsNoFile) {
  file(path("empty"))->finish();
  EXPECT_THAT(ends_, testing::ElementsAre(": "));
  EXPECT_FALSE(std::filesystem::exists(path("empty")));
}

TEST_F(TraceFileTest, IsWholeAtItsEnd) {
  const auto whole = file(path("whole"));
  for (int i = 0; i < 1'000; ++i) whole->write(kEvent);
  EXPECT_TRUE(whole->is_open());
  whole->finish();
  EXPECT_THAT(ends_, testing::ElementsAre(path("whole") + ": "));
  EXPECT_EQ(json::parse(folder_.read("whole")).size(), 1'001U);
}

TEST_F(TraceFileTest, EndsAfterItsSteps) {
  const auto some = file(path("some"), 2);
  const std::string step = "{\"ph\":\"X\",\"pid\":1,\"cat\":\"step\"},\n";
  some->write(step);
  EXPECT_TRUE(some->is_open());
  some->write(step);
  some->write(step);  // One too many.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (some->is_open() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_FALSE(some->is_open());
  EXPECT_THAT(ends_, testing::ElementsAre(path("some") + ": "));
  EXPECT_EQ(json::parse(folder_.read("some")).size(), 3U);
}

// A disk that stands still, as NFS may. Here it is a pipe that nobody reads.
TEST_F(TraceFileTest, ADiskThatStandsStillHoldsNobodyUp) {
  const std::string pipe = path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto stuck = file(pipe);
  const std::string much(std::size_t{1} << 20, ' ');
  for (std::size_t i = 0; i <= 2 * (TraceFile::kMostQueued >> 20); ++i) stuck->write(much);
  EXPECT_TRUE(stuck->is_open());
  // Somebody reads at last; what did not fit is said.
  std::thread reader([&pipe] {
    std::ifstream in(pipe);
    std::string ignored(std::size_t{1} << 20, ' ');
    while (in.read(ignored.data(), static_cast<std::streamsize>(ignored.size()))) {
    }
  });
  stuck->finish();
  reader.join();
  EXPECT_THAT(ends_, testing::ElementsAre(pipe + ": the disk was too slow; events are missing"));
}

// A disk that never comes back: nobody waits for it longer than finish() says.
TEST_F(TraceFileTest, ADiskThatNeverComesBackIsLeftAlone) {
  const std::string pipe = path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string step = "{\"ph\":\"X\",\"pid\":1,\"cat\":\"step\"},\n";
  auto stuck = file(pipe, 1);
  stuck->write(step);
  EXPECT_TRUE(stuck->is_open()) << "the last step does not wait for the disk";
  stuck->finish();
  EXPECT_THAT(ends_, testing::ElementsAre(pipe + ": the disk does not take it"));
  stuck.reset();
}

}  // namespace
}  // namespace ddp::server
