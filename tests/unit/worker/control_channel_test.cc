#include "worker/runtime/control_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/wire/control_messages.h"
#include "common/wire/frame.h"

namespace ddp {
namespace {

using std::chrono::seconds;

// The agent's end.
class Agent {
 public:
  Agent() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    mine_.reset(fds[0]);
    worker_.reset(fds[1]);
    ::setenv("DDP_CONTROL_FD", std::to_string(fds[1]).c_str(), 1);
    ::setenv("WORLD_SIZE", "1", 1);
    ::setenv("RANK", "0", 1);
    ::setenv("DDP_ROUND", "6", 1);
  }
  ~Agent() {
    for (const char* name : {"DDP_CONTROL_FD", "WORLD_SIZE", "RANK", "DDP_ROUND"}) ::unsetenv(name);
  }

  wire::WorkerMessage receive() {
    for (;;) {
      auto payload = decoder_.next();
      if (payload && *payload) return wire::decode_worker_message(**payload).value();
      char buffer[65536];
      const ssize_t count = ::recv(mine_.get(), buffer, sizeof(buffer), 0);
      if (count <= 0) throw std::runtime_error("the worker closed its end");
      decoder_.append({buffer, static_cast<std::size_t>(count)});
    }
  }
  void order(const wire::WorkerOrder& order) { send(wire::encode_frame(wire::encode(order))); }
  void send(const std::string& bytes) {
    EXPECT_EQ(::send(mine_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void close() { mine_.reset(); }
  int socket() const { return mine_.get(); }

 private:
  UniqueFd mine_;
  UniqueFd worker_;
  wire::FrameDecoder decoder_;
};

TEST(ControlChannel, DoesNothingWithoutAnAgent) {
  const auto channel = ControlChannel::from_environment({});
  channel->progress(1, 0.5, 10);
  channel->error("ignored", false);
}

TEST(ControlChannel, RefusesADescriptorThatIsNoneNamingIt) {
  for (const char* value : {"", "x", "-1", "987654"}) {
    ::setenv("DDP_CONTROL_FD", value, 1);
    try {
      ControlChannel::from_environment({});
      ADD_FAILURE() << value;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find("DDP_CONTROL_FD=" + std::string(value)),
                std::string::npos);
    }
  }
  ::unsetenv("DDP_CONTROL_FD");
}

TEST(ControlChannel, SaysHelloThenWhatItIsTold) {
  Agent agent;
  const auto channel = ControlChannel::from_environment({});
  const auto hello = std::get<wire::Hello>(agent.receive());
  EXPECT_EQ(hello.rank, 0);
  EXPECT_EQ(hello.round, 6);
  EXPECT_EQ(hello.pid, ::getpid());
  channel->progress(12, 0.25, 100);
  const auto progress = std::get<wire::Progress>(agent.receive());
  EXPECT_EQ(progress.step, 12);
  EXPECT_EQ(progress.loss, 0.25);
  channel->error(std::string(100'000, 'e'), true);
  const auto error = std::get<wire::WorkerError>(agent.receive());
  EXPECT_EQ(error.message, std::string(16 << 10, 'e'));
  EXPECT_TRUE(error.secondary);
}

TEST(ControlChannel, ProgressIsThinnedOut) {
  Agent agent;
  const auto channel = ControlChannel::from_environment({});
  agent.receive();
  const TimePoint begin = Clock::now();
  for (std::int64_t step = 0; step < 10'000; ++step) channel->progress(step, 0, 0);
  const auto elapsed = std::chrono::duration_cast<Duration>(Clock::now() - begin).count();
  channel->error("last", false);
  std::int64_t messages = 0;
  while (std::holds_alternative<wire::Progress>(agent.receive())) ++messages;
  EXPECT_GE(messages, 1);
  EXPECT_LE(messages, elapsed / 100 + 1);
}

TEST(ControlChannel, PassesOrdersOn) {
  Agent agent;
  std::promise<std::string> aborted;
  std::promise<void> commit;
  const auto channel = ControlChannel::from_environment(
      {[&](const std::string& reason) { aborted.set_value(reason); }, [&] { commit.set_value(); }});
  agent.receive();
  const std::string bytes =
      wire::encode_frame(wire::encode(wire::WorkerOrder{wire::CommitRequest{6, 5}})) +
      wire::encode_frame(R"({"type":"of a newer agent"})") +
      wire::encode_frame(wire::encode(wire::WorkerOrder{wire::Abort{6, "node lost"}}));
  for (const char byte : bytes) agent.send(std::string(1, byte));  // However the stream is cut.
  ASSERT_EQ(commit.get_future().wait_for(seconds(30)), std::future_status::ready);
  auto reason = aborted.get_future();
  ASSERT_EQ(reason.wait_for(seconds(30)), std::future_status::ready);
  EXPECT_EQ(reason.get(), "node lost");
}

TEST(ControlChannel, AnAgentThatDoesNotReadHoldsNobodyUp) {
  Agent agent;
  const auto channel = ControlChannel::from_environment({});
  for (int i = 0; i < 200; ++i)
    channel->error(std::string(16 << 10, 'x'), false);  // 3 MiB: more than any buffer.
  // What was kept arrives whole.
  EXPECT_TRUE(std::holds_alternative<wire::Hello>(agent.receive()));
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(std::get<wire::WorkerError>(agent.receive()).message.size(), 16U << 10);
}

TEST(ControlChannel, OutlivesTheAgentAndGarbage) {
  for (const bool garbage : {false, true}) {
    Agent agent;
    const auto channel = ControlChannel::from_environment({});
    if (garbage) agent.send("\xFF\xFF\xFF\xFF no frame");
    agent.close();
    for (int i = 0; i < 100; ++i) channel->error("nobody listens", false);
  }
}

}  // namespace
}  // namespace ddp
