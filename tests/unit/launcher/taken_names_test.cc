// Abstract sockets of ddp-run, whose names every user of the machine can compute and take.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/process/abstract_socket.h"
#include "common/wire/frame.h"
#include "common/wire/task_messages.h"
#include "launcher/node/predecessor.h"
#include "launcher/slurm/task_door.h"
#include "tests/support/other_user.h"

namespace ddp {
namespace {

using test::OtherUser;
using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): deadlines of tests.

// The job's name differs from test to test and from run to run.
config::JobSpec spec_of(const std::string& job) {
  config::JobSpec spec;
  spec.job_id = job + std::to_string(::getpid());
  spec.node_rank = 1;
  spec.rules.max_nodes = 2;
  spec.coordinator_host = "127.0.0.1";
  spec.coordinator_port = 1;
  return spec;
}

std::string place_of(const config::JobSpec& spec) {
  return "ddp-run 1 1 " + spec.job_id + " 127.0.0.1";
}

// Held by another user, from when the constructor returns until this object ends.
class Taken {
 public:
  Taken(const std::string& name, bool listens) {
    int told[2];
    if (::pipe(told) != 0 || ::pipe(end_) != 0) return;
    other_.emplace([&] {
      ::close(end_[1]);
      const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
      const bool done =
          bind_abstract(socket.get(), name) == 0 && (!listens || ::listen(socket.get(), 8) == 0);
      char byte = done ? 'y' : 'n';
      if (::write(told[1], &byte, 1) != 1) ::_exit(1);
      while (::read(end_[0], &byte, 1) > 0) {
      }
    });
    char byte = 'n';
    EXPECT_EQ(::read(told[0], &byte, 1), 1);
    EXPECT_EQ(byte, 'y');
    for (const int fd : {told[0], told[1], end_[0]}) ::close(fd);
  }
  ~Taken() { ::close(end_[1]); }  // Then other_ waits.

 private:
  int end_[2];
  std::optional<OtherUser> other_;
};

TEST(TakenNames, ASecondDdpRunOfAPlaceWaitsForTheFirst) {
  const config::JobSpec spec = spec_of("second");
  UniqueFd first = node::wait_for_predecessor(spec, 0ms);
  ASSERT_TRUE(first);
  EXPECT_FALSE(node::wait_for_predecessor(spec, 50ms)) << "it is still there";
  std::thread ends([&] {
    std::this_thread::sleep_for(20ms);  // sleep: the wait cannot be seen from outside
    first.reset();
  });
  EXPECT_TRUE(node::wait_for_predecessor(spec, 20s));
  ends.join();
}

TEST(TakenNames, APlaceThatAnotherUserHasIsNotWaitedFor) {
  if (const char* why = test::no_other_user()) GTEST_SKIP() << why;
  for (const bool listens : {true, false}) {
    const config::JobSpec spec = spec_of(listens ? "listens" : "bound");
    const Taken taken(place_of(spec), listens);
    const TimePoint before = Clock::now();
    EXPECT_FALSE(node::wait_for_predecessor(spec, 100s)) << listens;
    EXPECT_LT(Clock::now() - before, 50s);
  }
}

slurm::Step step_of(const std::string& job) {
  slurm::Step step;
  step.job_id = job + std::to_string(::getpid());
  step.step_id = "0";
  return step;
}

// What a task hears that greets at the door.
std::string visit(const std::string& name) {
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  if (connect_abstract(socket.get(), name) != 0) return "no door";
  const std::string greeting = wire::encode_frame(wire::encode(wire::TaskHello{1, {0}, {}}));
  if (::send(socket.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL) < 0) return "";
  std::string heard(1'024, '\0');
  pollfd entry{socket.get(), POLLIN, 0};
  if (::poll(&entry, 1, 20'000) <= 0) return "";
  heard.resize(static_cast<std::size_t>(
      std::max<ssize_t>(::recv(socket.get(), heard.data(), heard.size(), 0), 0)));
  return heard;
}

TEST(TakenNames, OnlyTheUsersTasksAreDismissed) {
  if (const char* why = test::no_other_user()) GTEST_SKIP() << why;
  const slurm::Step step = step_of("dismissed");
  const auto door = slurm::open_task_door(step);
  ASSERT_TRUE(door);
  const std::string name = slurm::task_socket_name(step);
  // It comes first, and would be taken for the only task.
  std::optional<OtherUser> other;
  other.emplace([&] { ::_exit(visit(name).empty() ? 0 : 1); });
  pollfd there{door->get(), POLLIN, 0};
  ASSERT_EQ(::poll(&there, 1, 20'000), 1);
  std::string heard;
  std::thread task([&] { heard = visit(name); });
  slurm::dismiss_tasks(*door, 7, 1, 20s);
  task.join();
  EXPECT_EQ(heard, wire::encode_frame(wire::encode(wire::Dismiss{7})));
  EXPECT_EQ(other->wait(), 0);
}

}  // namespace
}  // namespace ddp
