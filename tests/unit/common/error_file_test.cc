// The error files, in torchelastic's format, that workers and launchers write.
#include "common/wire/error_file.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace ddp::wire {
namespace {

nlohmann::json extra_info(const ErrorFile& error) {
  return nlohmann::json::parse(encode_error_file(error))["message"]["extraInfo"];
}

TEST(ErrorFile, ComesBackAsItWasButForMilliseconds) {
  const ErrorFile error{"ValueError: no", "Traceback\nline 7", 1'700'000'000'123, 5};
  const ErrorFile back = decode_error_file(encode_error_file(error));
  EXPECT_EQ(back.message, error.message);
  EXPECT_EQ(back.callstack, error.callstack);
  EXPECT_EQ(back.time_ms, 1'700'000'000'000);
  EXPECT_EQ(back.exit_code, 5);
}

TEST(ErrorFile, SaysWhetherTheCauseLiesWithAnotherRank) {
  ErrorFile error{.message = "rank 1 died", .callstack = "", .time_ms = 0};
  EXPECT_FALSE(decode_error_file(encode_error_file(error)).secondary);
  EXPECT_FALSE(extra_info(error).contains("secondary"));
  error.secondary = true;
  EXPECT_TRUE(decode_error_file(encode_error_file(error)).secondary);
  EXPECT_FALSE(
      decode_error_file(R"({"message": {"message": "x", "extraInfo": {"secondary": "yes"}}})")
          .secondary);
}

// ChildFailedError of 1.13.1, 2.6.0 and 2.14.1 calls replace() of whatever py_callstack is.
TEST(ErrorFile, TheCallstackIsTextThoughThereIsNone) {
  const ErrorFile error{.message = "rank 1 was killed", .callstack = "", .time_ms = 0};
  EXPECT_EQ(extra_info(error)["py_callstack"], "rank 1 was killed");
  EXPECT_EQ(decode_error_file(encode_error_file(error)).callstack, "");
}

// ProcessFailure of all three takes int() of it.
TEST(ErrorFile, TheTimeIsWholeSecondsAsText) {
  EXPECT_EQ(extra_info({.message = "x", .callstack = "", .time_ms = 1'999})["timestamp"], "1");
}

TEST(ErrorFile, TheTimeIsReadAsTextAndAsANumber) {
  const auto time_of = [](const std::string& json) { return decode_error_file(json).time_ms; };
  EXPECT_EQ(time_of(R"({"message": "x", "timestamp": 17})"), 17'000);
  EXPECT_EQ(time_of(R"({"message": "x", "timestamp": "17"})"), 17'000);
  EXPECT_EQ(time_of(R"({"message": {"message": "x", "extraInfo": {"timestamp": "17"}}})"), 17'000);
  EXPECT_EQ(time_of(R"({"message": {"message": "x", "extraInfo": {"timestamp": 17.9}}})"), 17'000);
  for (const char* nonsense : {"-1", "0", "1e300", "\"17s\"", "\"\"", "null", "[]",
                               "99999999999999999999", "\"99999999999999999999\""}) {
    EXPECT_EQ(time_of(std::string(R"({"message": "x", "timestamp": )") + nonsense + "}"), 0)
        << nonsense;
  }
}

}  // namespace
}  // namespace ddp::wire
