// The daemon with as many agents as a large job has, over real sockets. Times are printed but not
// checked; bench/ measures them.
#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include <asio/io_context.hpp>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/base/clock.h"
#include "common/net/frame_connection.h"
#include "tests/support/event_loop.h"
#include "tests/support/sanitizer.h"
#include "tests/support/server_thread.h"

namespace ddp::server {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): deadlines of tests.

constexpr int kAgents = 500;

wire::Join join_of(int number) {
  wire::Join join;
  join.job_id = "large";
  join.node_id = fmt::format("id{}", number);
  join.host = fmt::format("node{}", number);
  join.nproc = 8;
  join.rules.min_nodes = kAgents;
  join.rules.max_nodes = kAgents;
  join.rules.max_restarts = 10;
  join.rules.lease_ms = 3'600'000;  // One thread speaks for all, however slow this is.
  return join;
}

// Agents that have no workers: they note what they are told and answer `stopped` at once.
class Agents {
 public:
  struct Agent {
    std::shared_ptr<net::FrameConnection> connection;
    std::optional<wire::RoundStart> round;
    int messages = 0;
    bool closed = false;
  };

  explicit Agents(int port) : port_(port) {}
  // A connection that is only dropped lives as long as its stream.
  ~Agents() {
    for (const auto& [number, agent] : agents_) {
      if (agent.connection) agent.connection->close();
    }
  }

  void add(int number) {
    net::FrameConnection::connect(
        io_, "127.0.0.1", port_, {}, 20s,
        [this, number](Result<std::shared_ptr<net::FrameConnection>> connection) {
          ASSERT_TRUE(connection) << connection.error().message;
          Agent& agent = agents_[number];
          agent.connection = *std::move(connection);
          agent.connection->start([this, number](const std::string& text) { take(number, text); },
                                  [&agent](const Error&) { agent.closed = true; });
          send(agent, join_of(number));
        });
  }

  Agent& operator[](int number) { return agents_[number]; }

  // How long it took until `done`.
  template <typename Condition>
  std::chrono::microseconds until(Condition done) {
    const TimePoint start = Clock::now();
    const bool in_time = test::run_until(
        io_,
        [&] {
          beat();
          return done();
        },
        60s * test::kSlowness);
    EXPECT_TRUE(in_time);
    return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
  }

  // Those that have the start of this round.
  int in_round(Round round) const {
    return static_cast<int>(std::count_if(agents_.begin(), agents_.end(), [&](const auto& entry) {
      return entry.second.round && entry.second.round->round == round;
    }));
  }
  int messages() const {
    int sum = 0;
    for (const auto& [number, agent] : agents_) sum += agent.messages;
    return sum;
  }

 private:
  static void send(Agent& agent, const wire::AgentMessage& message) {
    agent.connection->send(wire::encode(message));
  }

  // Signs of life, also between messages: to read the lists of all agents takes one thread long.
  void beat() {
    if (Clock::now() - last_beat_ < 1s) return;
    last_beat_ = Clock::now();
    for (auto& [number, agent] : agents_) {
      if (agent.connection) send(agent, wire::Heartbeat{});
    }
  }

  void take(int number, const std::string& text) {
    beat();
    Agent& agent = agents_[number];
    ++agent.messages;
    const auto message = wire::decode_coordinator_message(text);
    ASSERT_TRUE(message) << message.error().message;
    if (const auto* start = std::get_if<wire::RoundStart>(&*message)) agent.round = *start;
    if (const auto* stop = std::get_if<wire::Stop>(&*message)) {
      wire::Stopped stopped;
      stopped.round = stop->round;
      send(agent, stopped);
    }
  }

  asio::io_context io_;
  int port_;
  TimePoint last_beat_ = Clock::now();
  std::map<int, Agent> agents_;
};

// Both ends of all connections are in this process.
void allow_many_files() {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
}

TEST(FiveHundredAgents, MeetAndReplaceOneThatIsLost) {
  allow_many_files();
  const test::ServerThread server;
  Agents agents(server.port());
  for (int number = 0; number < kAgents; ++number) agents.add(number);
  const auto meeting = agents.until([&] { return agents.in_round(0) == kAgents; });
  fmt::print("{} agents are in round 0 after {} us and {} messages\n", kAgents, meeting.count(),
             agents.messages());

  std::set<int> ranks;
  for (int number = 0; number < kAgents; ++number) {
    const wire::RoundStart& round = *agents[number].round;
    ranks.insert(round.group_rank);
    EXPECT_EQ(round.world_size, 8 * kAgents);
    ASSERT_EQ(static_cast<int>(round.members.size()), kAgents);
    EXPECT_EQ(round.members[static_cast<std::size_t>(round.group_rank)].host,
              fmt::format("node{}", number));
  }
  EXPECT_EQ(static_cast<int>(ranks.size()), kAgents);

  // A spare takes the place of one that is lost; the others keep theirs.
  agents.add(kAgents);
  agents.until([&] { return agents[kAgents].messages >= 2; });  // Welcome, and that it is a spare.
  const int before = agents.messages();
  constexpr int kLost = 123;
  const int rank = agents[kLost].round->group_rank;
  agents[kLost].connection->close();
  const auto replacing = agents.until([&] { return agents.in_round(1) == kAgents; });
  const int told = agents.messages() - before;
  fmt::print("{} agents are in round 1 {} us after a loss, {} messages\n", kAgents,
             replacing.count(), told);
  EXPECT_EQ(agents[kAgents].round->group_rank, rank);
  EXPECT_EQ(agents[0].round->group_rank, 0);
  // Each survivor is told to stop and to start, and perhaps once who is missing.
  EXPECT_LE(told, 3 * kAgents);
  agents.until([&] { return agents.in_round(1) == kAgents; });
}

}  // namespace
}  // namespace ddp::server
