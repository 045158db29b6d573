#include "agent/process/state_watch.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include "tests/support/process.h"

namespace ddp::agent {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(StateWatch, TellsOnceWhoWasStuckEveryTimeForTheLimit) {
  std::set<pid_t> stuck{7, 8};
  StateWatch watch(Duration(100), [&stuck](pid_t pid) { return stuck.contains(pid); });
  const TimePoint begin{Duration(1'000)};
  EXPECT_THAT(watch.look(begin, {7, 8, 9}), IsEmpty());
  stuck.erase(8);
  EXPECT_THAT(watch.look(begin + Duration(50), {7, 8, 9}), IsEmpty());
  stuck.insert(8);
  EXPECT_THAT(watch.look(begin + Duration(99), {7, 8, 9}), IsEmpty());
  EXPECT_THAT(watch.look(begin + Duration(100), {7, 8, 9}), ElementsAre(7));
  EXPECT_THAT(watch.look(begin + Duration(198), {7, 8, 9}), IsEmpty());
  EXPECT_THAT(watch.look(begin + Duration(199), {7, 8, 9}), ElementsAre(8));
  // Its number may be another process's now.
  watch.look(begin + Duration(200), {});
  EXPECT_THAT(watch.look(begin + Duration(400), {7}), IsEmpty());
}

TEST(StateWatch, LooksOftenEnough) {
  EXPECT_EQ(StateWatch(Duration(60'000)).period(), Duration(100));
  EXPECT_EQ(StateWatch(Duration(500)).period(), Duration(50));
  EXPECT_EQ(StateWatch(Duration(1)).period(), Duration(10));
}

// As vfork() does, CLONE_VFORK keeps a process in state D until its child has ended. Sanitizers
// make fork() of vfork().
TEST(StateWatch, TheKernelSaysWhoIsInStateD) {
  EXPECT_FALSE(is_uninterruptible(::getpid()));
  EXPECT_FALSE(is_uninterruptible(1'000'000'000));
  int until[2];
  ASSERT_EQ(::pipe(until), 0);
  const pid_t waiting = ::fork();
  ASSERT_GE(waiting, 0);
  if (waiting == 0) {
    ::close(until[1]);
    if (::syscall(SYS_clone, CLONE_VFORK | SIGCHLD, nullptr, nullptr, nullptr, nullptr) == 0) {
      char byte = 0;
      ::_exit(::read(until[0], &byte, 1) == 0 ? 0 : 1);
    }
    ::_exit(0);
  }
  EXPECT_TRUE(test::wait_until([waiting] { return is_uninterruptible(waiting); }));
  ::close(until[1]);
  ::waitpid(waiting, nullptr, 0);
  ::close(until[0]);
}

}  // namespace
}  // namespace ddp::agent
