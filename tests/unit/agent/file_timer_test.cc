#include "agent/process/file_timer.h"

#include <sys/stat.h>

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits.h>

#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace ddp::agent {
namespace {

std::string line(int pid, const std::string& scope, double expires, int signal) {
  return "{\"version\": 1, \"pid\": " + std::to_string(pid) + ", \"scope_id\": \"" + scope +
         "\", \"expiration_time\": " + std::to_string(expires) +
         ", \"signal\": " + std::to_string(signal) + "}";
}

std::vector<std::string> expired(TimerTable& table, double now) {
  std::vector<std::string> texts;
  for (const Expired& one : table.take_expired(now)) {
    texts.push_back(std::to_string(one.pid) + " " + one.scope + " " + std::to_string(one.signal));
  }
  return texts;
}

TEST(TimerTable, TellsWhoseTimeIsUp) {
  TimerTable table;
  EXPECT_FALSE(table.next());
  EXPECT_TRUE(table.take_line(line(7, "a", 100.5, 9)));
  EXPECT_TRUE(table.take_line(line(8, "a", 90, 15)));
  EXPECT_EQ(table.next(), 90);
  EXPECT_THAT(expired(table, 89), testing::IsEmpty());
  EXPECT_THAT(expired(table, 90), testing::ElementsAre("8 a 15"));
  EXPECT_THAT(expired(table, 90), testing::IsEmpty());
  EXPECT_THAT(expired(table, 101), testing::ElementsAre("7 a 9"));
}

TEST(TimerTable, AReleaseAndAnotherAcquireReplaceATimer) {
  TimerTable table;
  ASSERT_TRUE(table.take_line(line(7, "a", 100, 9)));
  ASSERT_TRUE(table.take_line(line(7, "a", 200, 9)));
  EXPECT_EQ(table.size(), 1U);
  EXPECT_EQ(table.next(), 200);
  ASSERT_TRUE(table.take_line(line(7, "a", -1, 0)));
  EXPECT_EQ(table.size(), 0U);
  EXPECT_TRUE(table.take_line(line(7, "never there", -1, 0)));
}

TEST(TimerTable, AWallClockThatIsSetLaterChangesNoTimer) {
  TimerTable table;
  ASSERT_TRUE(table.take_line(line(7, "a", 1'000'060, 9), 1'000'000));
  ASSERT_TRUE(table.take_line(line(8, "a", 1'003'660, 9), 1'003'600)) << "the clock was set";
  EXPECT_EQ(table.next(), 60);
  EXPECT_THAT(expired(table, 59), testing::IsEmpty());
  EXPECT_THAT(expired(table, 60), testing::ElementsAre("7 a 9", "8 a 9"));
}

// torch: the first in time that has a signal; a process without any is not ended.
TEST(TimerTable, OfSeveralTheFirstWithASignalCounts) {
  TimerTable table;
  ASSERT_TRUE(table.take_line(line(7, "a", 30, 9)));
  ASSERT_TRUE(table.take_line(line(7, "b", 20, 15)));
  ASSERT_TRUE(table.take_line(line(7, "c", 10, 0)));
  ASSERT_TRUE(table.take_line(line(7, "d", 1'000, 9)));
  ASSERT_TRUE(table.take_line(line(8, "a", 10, 0)));
  EXPECT_THAT(expired(table, 40), testing::ElementsAre("7 b 15"));
  EXPECT_EQ(table.size(), 0U);
}

TEST(TimerTable, RefusesWhatIsNoTimer) {
  TimerTable table;
  for (const std::string& text :
       {std::string(""), std::string("{}"), std::string("[1]"), std::string("nonsense"),
        line(0, "a", 1, 9), line(1, "a", 1, 9), line(-7, "a", 1, 9), line(7, "a", 1, 900),
        std::string("{\"pid\":7,\"scope_id\":3,\"expiration_time\":1,\"signal\":9}")}) {
    EXPECT_FALSE(table.take_line(text)) << text;
  }
  EXPECT_EQ(table.size(), 0U);
}

TEST(TimerFile, IsWantedOnlyWhereItIsEnabled) {
  std::map<std::string, std::string> variables;
  const auto environment = [&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  variables["TORCHELASTIC_TIMER_FILE"] = "/x/pipe";
  EXPECT_FALSE(timer_file_wanted(environment, "/scratch"));
  variables["TORCHELASTIC_ENABLE_FILE_TIMER"] = "0";
  EXPECT_FALSE(timer_file_wanted(environment, "/scratch"));
  variables["TORCHELASTIC_ENABLE_FILE_TIMER"] = "1";
  EXPECT_EQ(timer_file_wanted(environment, "/scratch"), "/x/pipe");
  variables.erase("TORCHELASTIC_TIMER_FILE");
  EXPECT_EQ(timer_file_wanted(environment, "/scratch"), "/scratch/timer");
}

TEST(FileTimersTest, MakesItsFifoAndTakesItAway) {
  const test::TempDir folder;
  const std::string path = folder.path() / "timer";
  asio::io_context io(1);
  std::vector<Expired> seen;
  {
    auto timers =
        FileTimers::listen(io, path, [&seen](const Expired& one) { seen.push_back(one); });
    ASSERT_TRUE(timers);
    struct stat info {};
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_TRUE(S_ISFIFO(info.st_mode));
    EXPECT_EQ(info.st_mode & 0777, 0600U);
    // In pieces, between others' nonsense.
    std::ofstream(path) << "nonsense\n{\"pid\": 77, ";
    std::ofstream(path) << "\"scope_id\": \"s\", \"expiration_time\": 5, \"signal\": 9}\n";
    while (seen.empty() && io.run_one_for(std::chrono::seconds(10)) > 0) {
    }
    ASSERT_EQ(seen.size(), 1U);
    EXPECT_EQ(seen[0].pid, 77);
    EXPECT_EQ(seen[0].scope, "s");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(FileTimersTest, LeavesAloneWhatIsNoFifo) {
  const test::TempDir folder;
  const std::string path = folder.write("timer", "mine");
  asio::io_context io(1);
  const auto timers = FileTimers::listen(io, path, [](const Expired&) {});
  ASSERT_FALSE(timers);
  EXPECT_THAT(timers.error().message, testing::HasSubstr("it exists and is not a FIFO"));
  EXPECT_EQ(folder.read("timer"), "mine");
}

TEST(SignalDescendant, ReachesOnlyWhatThisProcessHasStarted) {
  test::Process child({"sh", "-c", "echo $$; sleep 1000 & echo $!; wait"});
  ASSERT_TRUE(test::wait_until([&] {
    const std::string out = child.out();
    return std::count(out.begin(), out.end(), '\n') == 2;
  }));
  const std::string out = child.out();
  const pid_t grandchild = std::atoi(out.substr(out.find('\n') + 1).c_str());
  ASSERT_GT(grandchild, 1);
  EXPECT_TRUE(signal_descendant(grandchild, SIGKILL));
  EXPECT_EQ(child.wait(), 0);
  EXPECT_FALSE(signal_descendant(::getppid(), 0));
  EXPECT_FALSE(signal_descendant(::getpid(), 0));
  EXPECT_FALSE(signal_descendant(INT_MAX, 0));
}

}  // namespace
}  // namespace ddp::agent
