// The form of log lines and what DDP_LOG_LEVEL and LOGLEVEL do.

#include "common/log/log.h"

#include <algorithm>
#include <functional>
#include <string>

#include <gtest/gtest.h>
#include <stdlib.h>

namespace ddp::log {
namespace {

// What `work` writes to standard error.
std::string stderr_of(const char* level, const std::function<void()>& work,
                      const char* python_level = nullptr) {
  testing::internal::CaptureStderr();
  if (level == nullptr) {
    ::unsetenv("DDP_LOG_LEVEL");
  } else {
    ::setenv("DDP_LOG_LEVEL", level, 1);
  }
  if (python_level == nullptr) {
    ::unsetenv("LOGLEVEL");
  } else {
    ::setenv("LOGLEVEL", python_level, 1);
  }
  work();
  return testing::internal::GetCapturedStderr();
}

constexpr const char* kTime = "^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3} ";

TEST(LogTest, ALineHasTimeLevelAndProgram) {
  const std::string line = stderr_of(nullptr, [] {
    init("ddp-test");
    warning("{} of {}", 1, 2);
  });
  EXPECT_TRUE(testing::internal::RE::FullMatch(line, std::string(kTime) + "W ddp-test 1 of 2\n$"))
      << line;
}

TEST(LogTest, PercentSignsStay) {
  const std::string line = stderr_of(nullptr, [] {
    init("100%v");
    warning("99% {}", "done");
  });
  EXPECT_EQ(line.substr(24), "W 100%v 99% done\n");
}

TEST(LogTest, OneMessageIsOneLine) {
  const std::string line = stderr_of(nullptr, [] {
    init("p");
    write(Level::kError, "two\nlines {}\n");
  });
  EXPECT_EQ(line.substr(24), "E p two\\nlines {}\n");
}

TEST(LogTest, TheEnvironmentSetsTheLevel) {
  const auto say_all = [] {
    init("p");
    write(Level::kDebug, "d");
    info("i");
    warning("w");
    write(Level::kError, "e");
  };
  const auto lines = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(lines(stderr_of(nullptr, say_all)), 2);
  EXPECT_EQ(lines(stderr_of("", say_all)), 2);
  EXPECT_EQ(lines(stderr_of("debug", say_all)), 4);
  EXPECT_EQ(lines(stderr_of("error", say_all)), 1);
  EXPECT_EQ(lines(stderr_of("off", say_all)), 0);
  const std::string wrong = stderr_of("loud", say_all);
  EXPECT_EQ(lines(wrong), 3);
  EXPECT_NE(wrong.find("DDP_LOG_LEVEL='loud'"), std::string::npos) << wrong;
}

// As many of its own lines as torchrun 2.14.1 prints with these levels; it refuses to start with
// small letters, numbers, an empty level and an unknown one.
TEST(LogTest, LoglevelSetsTheLevelAsUnderTorchrun) {
  const auto lines = [](const char* python_level, const char* own_level = nullptr) {
    const std::string text = stderr_of(
        own_level,
        [] {
          init("p");
          write(Level::kDebug, "d");
          info("i");
          warning("w");
          write(Level::kError, "e");
        },
        python_level);
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(lines("DEBUG"), 4);
  EXPECT_EQ(lines("INFO"), 3);
  for (const char* level : {"WARNING", "WARN", "NOTSET", ""}) EXPECT_EQ(lines(level), 2) << level;
  EXPECT_EQ(lines("ERROR"), 1);
  for (const char* level : {"CRITICAL", "FATAL"}) EXPECT_EQ(lines(level), 0) << level;
  EXPECT_EQ(lines("info"), 3);
  for (const char* level : {"10", "bogus"}) EXPECT_EQ(lines(level), 3) << level;
  EXPECT_EQ(lines("ERROR", "debug"), 4);
}

}  // namespace
}  // namespace ddp::log
