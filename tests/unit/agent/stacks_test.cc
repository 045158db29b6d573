#include "agent/process/stacks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "common/base/unique_fd.h"
#include "tests/support/sanitizer.h"

namespace ddp::agent {
namespace {

// Its write end in the child.
std::atomic<int> child_out = -1;

void say(const char* word) { (void)!::write(child_out, word, 1); }

// As slow as the stacks of a large program.
void write_slowly(int /*signal*/) {
  say("a");
  for (const TimePoint end = Clock::now() + Duration(300); Clock::now() < end;) {
  }
  say("z");
}

// A child that says "r" when it is ready, and then waits for signals.
class Child {
 public:
  explicit Child(void (*handler)(int)) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    out_.reset(ends[0]);
    UniqueFd write_end(ends[1]);
    pid_ = ::fork();
    if (pid_ == 0) {
      child_out = write_end.get();
      ::signal(SIGRTMAX, handler);
      say("r");
      for (;;) ::pause();
    }
    write_end.reset();
    while (read().empty()) std::this_thread::yield();
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  // What it has said since the last call.
  std::string read() {
    char buffer[16];
    const ssize_t size = ::read(out_.get(), buffer, sizeof(buffer));
    return size > 0 ? std::string(buffer, static_cast<std::size_t>(size)) : std::string();
  }
  bool lives() const { return ::waitpid(pid_, nullptr, WNOHANG) == 0; }

 private:
  UniqueFd out_;
  pid_t pid_ = 0;
};

TEST(AskForStacks, WaitsUntilTheProcessHasWrittenThem) {
  if (test::kThreadSanitized) GTEST_SKIP() << "the handler runs later under ThreadSanitizer";
  Child child(write_slowly);
  ask_for_stacks({child.pid(), child.pid(), SIGRTMAX});
  EXPECT_EQ(child.read(), "az");
  ask_for_stacks({::getpid(), child.pid(), SIGRTMAX});
  EXPECT_EQ(child.read(), "az") << "a process that the worker has started";
}

TEST(AskForStacks, SendsNothingToAProcessThatWouldDieOfIt) {
  const Child child(SIG_DFL);
  ask_for_stacks({child.pid(), child.pid(), SIGRTMAX});
  EXPECT_TRUE(child.lives());
}

TEST(AskForStacks, SendsNothingToAProcessOfAnotherWorker) {
  const Child worker(SIG_DFL);
  Child other(write_slowly);
  ask_for_stacks({worker.pid(), other.pid(), SIGRTMAX});
  EXPECT_EQ(other.read(), "");
}

TEST(AskForStacks, SendsNothingThatIsNoSignal) {
  Child child(write_slowly);
  for (const int number : {-1, 0, 65, 1'000'000})
    ask_for_stacks({child.pid(), child.pid(), number});
  ask_for_stacks({child.pid(), 0, SIGRTMAX});
  ask_for_stacks({child.pid(), -1, SIGRTMAX});
  EXPECT_EQ(child.read(), "");
  EXPECT_TRUE(child.lives());
}

// It has other things to do than to wait for a process that does not run.
TEST(AskForStacks, DoesNotWaitForever) {
  const Child child(write_slowly);
  ::kill(child.pid(), SIGSTOP);
  const TimePoint begin = Clock::now();
  ask_for_stacks({child.pid(), child.pid(), SIGRTMAX});
  EXPECT_GE(Clock::now() - begin, kAskLimit);
  EXPECT_LT(Clock::now() - begin, 10 * kAskLimit);
}

}  // namespace
}  // namespace ddp::agent
