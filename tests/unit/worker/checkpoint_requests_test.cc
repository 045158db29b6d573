#include "worker/runtime/checkpoint_requests.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

namespace ddp {
namespace {

constexpr unsigned kLimitSeconds = 30;

// Runs `body` in a process of its own and returns how that ended, as waitpid() tells it. One that
// does not end dies of SIGALRM.
template <typename Body>
int end_of_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(kLimitSeconds);
    body();
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

struct Requests {
  std::unique_ptr<ControlChannel> channel = ControlChannel::from_environment({});
  CheckpointRequests requests{*channel};
};

TEST(CheckpointRequests, ASigtermIsARequestWhileSomebodyListens) {
  const int status = end_of_child([] {
    Requests own;
    const CheckpointRequests::Listening listening(own.requests);
    ::raise(SIGTERM);
    const bool asked = own.requests.own() == CheckpointRequests::Asked::kCheckpointAndStop;
    ::_exit(asked && own.requests.take_stop() ? 7 : 1);
  });
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST(CheckpointRequests, ASigtermThatNobodyTookEndsTheProcessAfterTheLastListening) {
  const int status = end_of_child([] {
    Requests own;
    std::optional<CheckpointRequests::Listening> first(own.requests);
    std::optional<CheckpointRequests::Listening> last(own.requests);
    ::raise(SIGTERM);
    first.reset();
    if (own.requests.own() != CheckpointRequests::Asked::kCheckpointAndStop) ::_exit(1);
    last.reset();
  });
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
}

// The agent orders the workers of a failed round to abort, and then sends SIGTERM: one thread ends
// the listening while another one is in the handler. A lost signal leaves the process waiting.
TEST(CheckpointRequests, ASigtermIsNotLostWhileTheListeningEnds) {
  for (int run = 0; run < 300; ++run) {
    const auto apart = std::chrono::nanoseconds(200 * run);
    const int status = end_of_child([apart] {
      Requests own;
      std::optional<CheckpointRequests::Listening> listening(own.requests);
      std::atomic<bool> begun = false;
      const std::thread other([&] {
        const auto end = std::chrono::steady_clock::now() + apart;
        begun = true;
        while (std::chrono::steady_clock::now() < end) {
        }
        listening.reset();
        listening.emplace(own.requests);  // As a loop does for its next run.
        listening.reset();
        for (;;) ::pause();
      });
      while (!begun) {
      }
      ::kill(::getpid(), SIGTERM);
      for (;;) ::pause();
    });
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    ASSERT_EQ(WTERMSIG(status), SIGTERM) << "run " << run << ", " << apart.count() << " ns";
  }
}

}  // namespace
}  // namespace ddp
