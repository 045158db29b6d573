#include "common/process/descendants.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/process.h"
#include "tests/support/process_table.h"

namespace ddp {
namespace {

using test::wait_until;

class KillDescendants : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    static int count = 0;
    mark_ = "DDP_TEST_FAMILY=" + std::to_string(::getpid()) + "-" + std::to_string(++count);
  }
  void TearDown() override { kill_descendants(); }

  // A child that runs this script; everything it starts carries the mark.
  pid_t child(const std::string& script) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::putenv(mark_.data());
      ::execl("/bin/sh", "sh", "-c", script.c_str(), nullptr);
      ::_exit(125);
    }
    return pid;
  }
  // Of the programs called so.
  std::size_t alive(const std::string& name) const {
    std::size_t count = 0;
    for (const pid_t pid : test::processes_with(mark_)) {
      if (test::process_name(pid) == name) ++count;
    }
    return count;
  }
  static bool has_children() {
    siginfo_t info;
    return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
  }

  std::string mark_;
};

TEST_F(KillDescendants, FindsThemWhereverTheyHaveGone) {
  for (int i = 0; i < 20; ++i) {
    child(
        "sleep 1000 & setsid sh -c 'trap \"\" TERM HUP; sleep 1000 & sleep 1000' & (setsid sleep "
        "1000 &); "
        "sh -c 'kill -STOP $$; sleep 1000'");
    ASSERT_TRUE(wait_until([this] { return alive("sleep") == 4; }));
    EXPECT_TRUE(kill_descendants());
    EXPECT_FALSE(has_children());
    EXPECT_TRUE(test::processes_with(mark_).empty());
  }
}

TEST_F(KillDescendants, CatchesAFamilyThatGrows) {
  child("while :; do sleep 0.01 & sleep 0.01; done");
  child("f() { sh -c 'sleep 1000 & exec setsid sleep 1000' & sleep 0.005; f; }; f");
  ASSERT_TRUE(wait_until([this] { return alive("sleep") > 10; }));
  EXPECT_TRUE(kill_descendants());
  EXPECT_FALSE(has_children());
  EXPECT_TRUE(test::processes_with(mark_).empty());
}

TEST_F(KillDescendants, ReapsThoseThatHaveEnded) {
  const pid_t pid = child("exit 3");
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(kill_descendants());
  EXPECT_FALSE(has_children());
}

TEST_F(KillDescendants, KeepsTheFamiliesThatItIsTold) {
  const std::vector<pid_t> kept{child("sleep 1000 & sleep 1000"), child("exec sleep 1000")};
  child("sleep 1000 & sleep 1000");
  ASSERT_TRUE(wait_until([this] { return alive("sleep") == 5; }));
  EXPECT_TRUE(kill_descendants(kept));
  EXPECT_EQ(alive("sleep"), 3U);
  EXPECT_TRUE(kill_descendants());
  EXPECT_EQ(alive("sleep"), 0U);
}

TEST_F(KillDescendants, NothingToDoIsSuccess) { EXPECT_TRUE(kill_descendants()); }

TEST_F(KillDescendants, FindsThoseThatWereStartedWithAVariable) {
  child("MARK=a sleep 1000 & MARK=b sleep 1000 & (MARK=a setsid sleep 1000 &); exec sleep 1000");
  ASSERT_TRUE(wait_until([this] { return alive("sleep") == 4; }));
  EXPECT_EQ(descendants_with("MARK=a").size(), 2u);
  EXPECT_EQ(descendants_with("MARK=b").size(), 1u);
  EXPECT_EQ(descendants_with("MARK=").size(), 0u);
  EXPECT_EQ(descendants_with("ARK=a").size(), 0u);
  EXPECT_EQ(descendants_with(mark_).size(), 4u);
  kill_descendants();
  EXPECT_EQ(descendants_with("MARK=a").size(), 0u);
}

}  // namespace
}  // namespace ddp
