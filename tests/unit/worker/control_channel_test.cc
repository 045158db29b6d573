#include "worker/runtime/control_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <future>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/wire/control_messages.h"
#include "common/wire/frame.h"
#include "worker/runtime/waiting_time.h"

namespace ddp {
namespace {

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
    ::setenv("DDP_SNAPSHOTS", "2", 1);
  }
  ~Agent() {
    for (const char* name :
         {"DDP_CONTROL_FD", "WORLD_SIZE", "RANK", "DDP_ROUND", "DDP_SNAPSHOTS"}) {
      ::unsetenv(name);
    }
  }

  wire::WorkerMessage receive() {
    for (;;) {
      auto payload = decoder_.next();
      if (payload && *payload) return wire::decode_worker_message(**payload).value();
      char buffer[65536];
      iovec bytes{buffer, sizeof(buffer)};
      alignas(cmsghdr) char space[CMSG_SPACE(4 * sizeof(int))];
      msghdr message{};
      message.msg_iov = &bytes;
      message.msg_iovlen = 1;
      message.msg_control = space;
      message.msg_controllen = sizeof(space);
      const ssize_t count = ::recvmsg(mine_.get(), &message, MSG_CMSG_CLOEXEC);
      if (count <= 0) throw std::runtime_error("the worker closed its end");
      take_descriptors(message);
      decoder_.append({buffer, static_cast<std::size_t>(count)});
    }
  }
  // Those that have come so far.
  std::vector<UniqueFd>& descriptors() { return descriptors_; }
  void order(const wire::WorkerOrder& order) { send(wire::encode_frame(wire::encode(order))); }
  void send(const std::string& bytes) {
    EXPECT_EQ(::send(mine_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void close() { mine_.reset(); }
  int socket() const { return mine_.get(); }

 private:
  void take_descriptors(msghdr& message) {
    for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr;
         item = CMSG_NXTHDR(&message, item)) {
      for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= item->cmsg_len; at += sizeof(int)) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(item) + at, sizeof(fd));
        descriptors_.emplace_back(fd);
      }
    }
  }

  UniqueFd mine_;
  UniqueFd worker_;
  std::vector<UniqueFd> descriptors_;
  wire::FrameDecoder decoder_;
};

TEST(ControlChannel, DoesNothingWithoutAnAgent) {
  const auto channel = ControlChannel::from_environment({});
  channel->progress(1, 0.5, 10);
  channel->error("ignored", false);
  EXPECT_EQ(channel->snapshot_limit(), 0);
  EXPECT_FALSE(channel->submit_snapshot({"id", 1, 4096, 0}, {}));
  EXPECT_EQ(channel->checkpoint_requests(), 0);
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

TEST(ControlChannel, ALossThatIsNoNumberDoesNotLoseTheStep) {
  Agent agent;
  const auto channel = ControlChannel::from_environment({});
  agent.receive();
  const double no_number = std::numeric_limits<double>::quiet_NaN();
  channel->progress(12, no_number, std::numeric_limits<double>::infinity());
  const auto progress = std::get<wire::Progress>(agent.receive());
  EXPECT_EQ(progress.step, 12);
  EXPECT_TRUE(std::isnan(progress.loss));
  EXPECT_TRUE(std::isnan(progress.samples_per_second));
}

TEST(ControlChannel, ProgressSaysHowLongThisProcessHasNotWaited) {
  Agent agent;
  const auto channel = ControlChannel::from_environment({});
  agent.receive();
  const TimePoint started = Clock::now();
  channel->progress(1, 0, 0);
  const double before = std::get<wire::Progress>(agent.receive()).computed_ms;
  {
    const runtime::Waiting waiting;
    std::this_thread::sleep_for(std::chrono::milliseconds(150));  // sleep: a wait of known length
  }
  channel->progress(2, 0, 0);
  const double after = std::get<wire::Progress>(agent.receive()).computed_ms;
  const std::chrono::duration<double, std::milli> all = Clock::now() - started;
  EXPECT_GE(after, before);
  EXPECT_LE(after - before, all.count() - 150) << "the wait counts as computing";
}

TEST(ControlChannel, SaysHelloThenWhatItIsTold) {
  Agent agent;
  const auto channel = ControlChannel::from_environment({});
  const auto hello = std::get<wire::Hello>(agent.receive());
  EXPECT_EQ(hello.rank, 0);
  EXPECT_EQ(hello.round, 6);
  EXPECT_EQ(hello.pid, ::getpid());
  channel->progress(12, 0.25, 100, 828);
  const auto progress = std::get<wire::Progress>(agent.receive());
  EXPECT_EQ(progress.step, 12);
  EXPECT_EQ(progress.total_steps, 828);
  EXPECT_EQ(progress.loss, 0.25);
  channel->error(std::string(100'000, 'e'), true);
  const auto error = std::get<wire::WorkerError>(agent.receive());
  EXPECT_EQ(error.message, std::string(16 << 10, 'e'));
  EXPECT_TRUE(error.secondary);
}

TEST(ControlChannel, TellsBeforeTheFirstLossThatThereIsNone) {
  Agent agent;
  const auto channel = ControlChannel::from_environment({}, false, 64);
  EXPECT_EQ(std::get<wire::Hello>(agent.receive()).stack_signal, 64);
  channel->progress(3);
  const auto progress = std::get<wire::Progress>(agent.receive());
  EXPECT_EQ(progress.step, 3);
  EXPECT_EQ(progress.loss, 0);
  EXPECT_TRUE(std::isnan(progress.samples_per_second));
}

TEST(ControlChannel, WhoWaitsSaysTheLastProgressAgain) {
  Agent agent;
  const auto channel = ControlChannel::from_environment({});
  agent.receive();
  channel->still_waits();  // Before the first there is nothing to say.
  channel->progress(12, 0.25, 100);
  EXPECT_EQ(std::get<wire::Progress>(agent.receive()).step, 12);
  std::this_thread::sleep_for(std::chrono::milliseconds(110));  // sleep: ten messages a second
  channel->still_waits();
  const auto again = std::get<wire::Progress>(agent.receive());
  EXPECT_EQ(again.step, 12);
  EXPECT_EQ(again.loss, 0.25);
  EXPECT_EQ(again.samples_per_second, 100);
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
  ASSERT_EQ(commit.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  auto reason = aborted.get_future();
  ASSERT_EQ(reason.wait_for(std::chrono::seconds(30)), std::future_status::ready);
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

UniqueFd snapshot(const std::string& text) {
  UniqueFd fd(::memfd_create("snapshot", MFD_CLOEXEC));
  EXPECT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  return fd;
}

bool is_same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_ino == second.st_ino;
}

TEST(ControlChannel, HandsSnapshotsOverAndPassesTheAnswersOn) {
  Agent agent;
  const auto channel = ControlChannel::from_environment({});
  EXPECT_EQ(channel->snapshot_limit(), 2);
  const UniqueFd first = snapshot("first");
  const UniqueFd lock = snapshot("lock");
  const UniqueFd second = snapshot("second");
  std::promise<SnapshotResult> first_done;
  std::promise<SnapshotResult> second_done;
  ASSERT_TRUE(channel->submit_snapshot(
      {"a", 7, 5, first.get(), lock.get()},
      [&](const SnapshotResult& result) { first_done.set_value(result); }));
  EXPECT_FALSE(channel->submit_snapshot({"a", 8, 6, second.get()}, {})) << "that id is under way";
  EXPECT_FALSE(channel->submit_snapshot({"c", 8, 6, 987'654}, {})) << "no such descriptor";
  channel->progress(7, 0.5, 10);
  ASSERT_TRUE(channel->submit_snapshot(
      {"b", 8, 6, second.get()},
      [&](const SnapshotResult& result) { second_done.set_value(result); }));
  agent.receive();  // Hello.
  const auto told = std::get<wire::SubmitSnapshot>(agent.receive());
  EXPECT_EQ(told.id, "a");
  EXPECT_EQ(told.step, 7);
  EXPECT_EQ(told.bytes, 5);
  EXPECT_TRUE(told.locked);
  EXPECT_TRUE(std::holds_alternative<wire::Progress>(agent.receive()));
  const auto later = std::get<wire::SubmitSnapshot>(agent.receive());
  EXPECT_EQ(later.id, "b");
  EXPECT_FALSE(later.locked);
  ASSERT_EQ(agent.descriptors().size(), 3U);
  EXPECT_TRUE(is_same_file(agent.descriptors()[0].get(), first.get()));
  EXPECT_TRUE(is_same_file(agent.descriptors()[1].get(), lock.get()));
  EXPECT_TRUE(is_same_file(agent.descriptors()[2].get(), second.get()));
  agent.order(wire::SnapshotWritten{"of somebody else", true, "", "", 0, 0, {}});
  agent.order(wire::SnapshotWritten{"b", false, "the disk is full", "", 0, 0.5, {}});
  agent.order(wire::SnapshotWritten{"a", true, "", "/c/step-7", 5, 0.25, {"slow"}});
  const SnapshotResult refused = second_done.get_future().get();
  EXPECT_FALSE(refused.ok);
  EXPECT_EQ(refused.error, "the disk is full");
  const SnapshotResult written = first_done.get_future().get();
  EXPECT_TRUE(written.ok);
  EXPECT_EQ(written.path, "/c/step-7");
  EXPECT_EQ(written.bytes, 5);
  EXPECT_EQ(written.seconds, 0.25);
  EXPECT_EQ(written.warnings, std::vector<std::string>{"slow"});
}

TEST(ControlChannel, EverySnapshotIsAnsweredOnceWhateverBecomesOfTheAgent) {
  const UniqueFd memory = snapshot("x");
  int answers = 0;
  {
    Agent agent;
    const auto channel = ControlChannel::from_environment({});
    std::promise<SnapshotResult> done;
    ASSERT_TRUE(channel->submit_snapshot({"a", 1, 1, memory.get()}, [&](const SnapshotResult& end) {
      ++answers;
      done.set_value(end);
    }));
    agent.close();
    const SnapshotResult end = done.get_future().get();
    EXPECT_FALSE(end.ok);
    EXPECT_NE(end.error.find("the agent is gone"), std::string::npos) << end.error;
    EXPECT_FALSE(channel->submit_snapshot({"b", 1, 1, memory.get()}, {}));
  }
  EXPECT_EQ(answers, 1);
  {
    Agent agent;
    const auto channel = ControlChannel::from_environment({});
    ASSERT_TRUE(channel->submit_snapshot(
        {"a", 1, 1, memory.get()}, [&](const SnapshotResult& end) { answers += end.ok ? 0 : 1; }));
  }
  EXPECT_EQ(answers, 2) << "the channel was closed";
}

TEST(ControlChannel, CountsRequestsForACheckpoint) {
  Agent agent;
  std::promise<void> commit;
  const auto channel = ControlChannel::from_environment({{}, [&commit] { commit.set_value(); }});
  agent.order(wire::CheckpointRequest{});
  agent.order(wire::CheckpointRequest{});
  agent.order(wire::CommitRequest{});
  ASSERT_EQ(commit.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(channel->checkpoint_requests(), 2);
}

}  // namespace
}  // namespace ddp
