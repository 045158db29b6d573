// A daemon that another one may replace: what it waits for before it answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/net/frame_connection.h"
#include "launcher/server/server.h"
#include "tests/support/event_loop.h"

namespace ddp::server {
namespace {

using rendezvous::JobRecord;

// An agent of a job of two nodes.
class Agent {
 public:
  Agent(asio::io_context& io, int port, const std::string& node_id) {
    net::FrameConnection::connect(
        io, "127.0.0.1", port, {}, std::chrono::milliseconds(10'000),
        [this, node_id](Result<std::shared_ptr<net::FrameConnection>> connection) {
          ASSERT_TRUE(connection) << connection.error().message;
          connection_ = *connection;
          connection_->start(
              [this](const std::string& payload) {
                received_.push_back(wire::decode_coordinator_message(payload).value());
              },
              [](const Error&) {});
          wire::Join join;
          join.job_id = "job";
          join.node_id = join.host = node_id;
          join.rules.min_nodes = join.rules.max_nodes = 2;
          join.rules.max_restarts = 5;
          send(join);
        });
  }
  ~Agent() { close(); }
  void send(const wire::AgentMessage& message) { connection_->send(wire::encode(message)); }
  void close() {
    if (connection_) std::exchange(connection_, nullptr)->close();
  }
  bool connected() const { return connection_ != nullptr; }
  // The last message of this kind.
  template <typename Message>
  const Message* last() const {
    for (auto one = received_.rbegin(); one != received_.rend(); ++one) {
      if (const auto* message = std::get_if<Message>(&*one)) return message;
    }
    return nullptr;
  }

 private:
  std::shared_ptr<net::FrameConnection> connection_;
  std::vector<wire::CoordinatorMessage> received_;
};

class ServerRecordTest : public testing::Test {
 protected:
  ServerRecordTest() {
    ServerOptions options;
    options.bind_address = "127.0.0.1";
    options.closed_at_first = true;
    server_ = std::move(*Server::listen(io_, options));
  }
  void open(Round next_round = 0, int restarts = 0) {
    JobRecord record;
    record.job_id = "job";
    record.next_round = next_round;
    record.restarts = restarts;
    server_->open(record, {.store =
                               [this](const JobRecord& next, std::function<void()> stored) {
                                 stored_.push_back(next);
                                 waiting_ = std::move(stored);
                               },
                           .confirm =
                               [this](std::function<void()> confirmed) {
                                 ++asked_;
                                 waiting_ = std::move(confirmed);
                               }});
  }
  bool until(const std::function<bool()>& condition) { return test::run_until(io_, condition); }
  // Long enough for what is sent to arrive.
  void let_things_go_on() {
    test::run_until(
        io_, [] { return false; }, std::chrono::milliseconds(50));
  }
  void release() { std::exchange(waiting_, nullptr)(); }

  asio::io_context io_{1};
  std::unique_ptr<Server> server_;
  std::vector<JobRecord> stored_;
  int asked_ = 0;
  std::function<void()> waiting_;
};

TEST_F(ServerRecordTest, NobodyIsServedBeforeTheRecordIsThere) {
  Agent first(io_, server_->port(), "n0");
  Agent second(io_, server_->port(), "n1");
  let_things_go_on();
  EXPECT_FALSE(first.connected());
  open(7, 3);
  ASSERT_TRUE(until([&] { return waiting_ != nullptr; }));
  release();
  ASSERT_TRUE(until([&] { return first.last<wire::RoundStart>() != nullptr; }));
  EXPECT_EQ(first.last<wire::RoundStart>()->round, 7);
  EXPECT_EQ(first.last<wire::RoundStart>()->restarts, 3);
}

TEST_F(ServerRecordTest, NoRoundStartsBeforeItsRecordIsStored) {
  open();
  Agent first(io_, server_->port(), "n0");
  Agent second(io_, server_->port(), "n1");
  ASSERT_TRUE(until([&] { return waiting_ != nullptr; }));
  ASSERT_EQ(stored_.size(), 1u);
  EXPECT_EQ(stored_[0].next_round, 1);
  let_things_go_on();
  EXPECT_EQ(first.last<wire::RoundStart>(), nullptr);
  EXPECT_EQ(second.last<wire::RoundStart>(), nullptr);
  release();
  ASSERT_TRUE(until([&] {
    return first.last<wire::RoundStart>() != nullptr && second.last<wire::RoundStart>() != nullptr;
  }));
}

TEST_F(ServerRecordTest, NoJobEndsBeforeItsRecordIsStored) {
  open();
  Agent first(io_, server_->port(), "n0");
  Agent second(io_, server_->port(), "n1");
  ASSERT_TRUE(until([&] { return waiting_ != nullptr; }));
  release();
  ASSERT_TRUE(until([&] { return second.last<wire::RoundStart>() != nullptr; }));
  bool finished = false;
  server_->on_job_finished([&](const std::string&, const wire::Finish&) { finished = true; });
  first.send(wire::Succeeded{0});
  second.send(wire::Succeeded{0});
  ASSERT_TRUE(until([&] { return waiting_ != nullptr; }));
  EXPECT_TRUE(stored_.back().finished);
  EXPECT_EQ(stored_.back().result.exit_code, 0);
  let_things_go_on();
  EXPECT_EQ(first.last<wire::Finish>(), nullptr);
  EXPECT_FALSE(finished);
  release();
  ASSERT_TRUE(until([&] { return first.last<wire::Finish>() != nullptr && finished; }));
}

// Its agents may have gone because another coordinator has its place.
TEST_F(ServerRecordTest, NobodyIsToldToStopBeforeItIsSureToBeTheCoordinator) {
  open();
  Agent first(io_, server_->port(), "n0");
  Agent second(io_, server_->port(), "n1");
  ASSERT_TRUE(until([&] { return waiting_ != nullptr; }));
  release();
  ASSERT_TRUE(until([&] { return first.last<wire::RoundStart>() != nullptr; }));
  EXPECT_EQ(asked_, 0);
  second.close();
  ASSERT_TRUE(until([&] { return asked_ == 1; }));
  let_things_go_on();
  EXPECT_EQ(first.last<wire::Stop>(), nullptr);
  release();
  ASSERT_TRUE(until([&] { return first.last<wire::Stop>() != nullptr; }));
}

// Otherwise a round could be stored and never announced, because another daemon coordinates by
// then.
TEST_F(ServerRecordTest, AnotherDaemonDoesNotTakeOverWhileSomethingIsToBeTold) {
  open();
  const Agent first(io_, server_->port(), "n0");
  const Agent second(io_, server_->port(), "n1");
  ASSERT_TRUE(until([&] { return waiting_ != nullptr; }));
  release();
  ASSERT_TRUE(until([&] { return first.last<wire::RoundStart>() != nullptr; }));
  bool has_left = false;
  server_->leave("job", "n2", "node n2 left", std::chrono::hours(1), [&] { has_left = true; });
  server_->end_job("job", 1, "ended by hand");
  let_things_go_on();
  EXPECT_FALSE(has_left);
  EXPECT_EQ(first.last<wire::Stop>(), nullptr);
  release();
  ASSERT_TRUE(until([&] { return has_left; }));
}

// Another ddp-run coordinates before the keeper has answered. Whoever leaves must not wait for
// ever.
TEST_F(ServerRecordTest, LeavingEndsWithTheDaemon) {
  open();
  const Agent first(io_, server_->port(), "n0");
  const Agent second(io_, server_->port(), "n1");
  ASSERT_TRUE(until([&] { return waiting_ != nullptr; }));
  bool has_left = false;
  server_->leave("job", "n1", "node n1 left", std::chrono::hours(1), [&] { has_left = true; });
  let_things_go_on();
  ASSERT_FALSE(has_left);
  server_.reset();
  EXPECT_TRUE(until([&] { return has_left; }));
}

// What the keeper calls back after the daemon has gone is nobody's.
TEST_F(ServerRecordTest, ALateAnswerOfTheKeeperHarmsNobody) {
  open();
  Agent first(io_, server_->port(), "n0");
  Agent second(io_, server_->port(), "n1");
  ASSERT_TRUE(until([&] { return waiting_ != nullptr; }));
  server_.reset();
  release();
  let_things_go_on();
  EXPECT_EQ(first.last<wire::RoundStart>(), nullptr);
}

}  // namespace
}  // namespace ddp::server
