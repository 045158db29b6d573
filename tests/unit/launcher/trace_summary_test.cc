#include "launcher/trace/trace_summary.h"

#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/server/step_count.h"

namespace ddp::trace {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string event(int rank, const std::string& kind, double begin, double end,
                  const std::string& more = "") {
  return fmt::format(
      R"({{"ph":"X","pid":{},"tid":{}000,"cat":"{}","name":"x","ts":{},"dur":{},"args":{{"rank":{},"round":0{}}}}})"
      ",\n",
      rank + 1, rank + 1, kind, begin, end - begin, rank, more);
}

std::string operation(int rank, int sequence, double issued, double begin, double end) {
  return event(rank, "collective", begin, end,
               fmt::format(R"(,"group":"world","sequence":{},"bytes":8,"queued_us":{})", sequence,
                           begin - issued));
}

std::map<int, RankSummary> summary_of(const std::string& text) {
  TraceEventsReader reader;
  // As it may come from a socket.
  for (std::size_t at = 0; at < text.size(); at += 7)
    reader.take(std::string_view(text).substr(at, 7));
  return summarize(reader.ranks());
}

// Rank 0 waits from 400 on; rank 1 comes at 700; bytes move until 1,000.
const std::string kLateRank = "[\n" + event(0, "step", 0, 1'000) + event(1, "step", 0, 1'000) +
                              event(0, "input", 0, 100) + operation(0, 5, 400, 400, 1'000) +
                              operation(1, 5, 700, 700, 1'000) + event(0, "wait", 400, 1'000) +
                              event(1, "wait", 700, 1'000);

TEST(TraceSummary, SaysWhereTheTimeOfAStepWent) {
  const auto ranks = summary_of(kLateRank);
  ASSERT_EQ(ranks.size(), 2U);
  const RankSummary& first = ranks.at(0);
  EXPECT_EQ(first.steps, 1U);
  EXPECT_DOUBLE_EQ(first.step, 1'000);
  EXPECT_DOUBLE_EQ(first.waiting, 300);
  EXPECT_DOUBLE_EQ(first.waiting_for.at(1), 300);
  EXPECT_DOUBLE_EQ(first.moving, 300);
  EXPECT_DOUBLE_EQ(first.input, 100);
  EXPECT_DOUBLE_EQ(first.compute, 300);
  EXPECT_DOUBLE_EQ(ranks.at(1).waiting, 0);
  EXPECT_DOUBLE_EQ(ranks.at(1).moving, 300);
  EXPECT_DOUBLE_EQ(ranks.at(1).compute, 700);
  EXPECT_THAT(summary_text(ranks),
              HasSubstr("The others wait for rank 1: 0.30 ms of each step, 30%."));
}

TEST(TraceSummary, NobodyIsNamedIfRanksWaitForOneAnother) {
  const auto ranks = summary_of(event(0, "step", 0, 1'000) + event(1, "step", 0, 1'000) +
                                operation(0, 0, 100, 100, 300) + operation(1, 0, 250, 250, 300) +
                                operation(0, 1, 700, 700, 800) + operation(1, 1, 500, 500, 800) +
                                event(0, "wait", 100, 300) + event(1, "wait", 500, 800));
  EXPECT_DOUBLE_EQ(ranks.at(0).waiting, 150);
  EXPECT_DOUBLE_EQ(ranks.at(1).waiting, 200);
  EXPECT_THAT(summary_text(ranks), HasSubstr("now for this rank, now for that"));
}

// Backward hides operations: only what the training thread waits for counts.
TEST(TraceSummary, AnOperationThatNobodyWaitsForIsNoWait) {
  const auto ranks = summary_of(event(0, "step", 0, 1'000) + operation(0, 0, 100, 100, 600));
  EXPECT_DOUBLE_EQ(ranks.at(0).waiting + ranks.at(0).moving, 0);
  EXPECT_DOUBLE_EQ(ranks.at(0).compute, 1'000);
  EXPECT_THAT(summary_text(ranks), Not(HasSubstr("The others wait")));
}

TEST(TraceSummary, OneWaitForSeveralOperationsIsDividedAmongThem) {
  // Three buckets; rank 1 is late for the second by 100, and what is waited for is not counted
  // twice.
  const auto ranks = summary_of(event(0, "step", 0, 1'000) + event(1, "step", 0, 1'000) +
                                operation(0, 0, 100, 100, 300) + operation(1, 0, 90, 100, 300) +
                                operation(0, 1, 110, 300, 600) + operation(1, 1, 500, 500, 600) +
                                operation(0, 2, 120, 600, 800) + operation(1, 2, 510, 600, 800) +
                                event(0, "wait", 400, 800));
  const RankSummary& first = ranks.at(0);
  EXPECT_DOUBLE_EQ(first.waiting, 100);
  EXPECT_DOUBLE_EQ(first.moving, 300);
}

TEST(TraceSummary, CheckpointsCountWithoutTheWaitsInThem) {
  const auto ranks = summary_of(event(0, "step", 0, 1'000) + event(0, "checkpoint", 500, 900) +
                                event(0, "wait", 600, 700));
  EXPECT_DOUBLE_EQ(ranks.at(0).checkpoint, 300);
  EXPECT_DOUBLE_EQ(ranks.at(0).moving, 100);
  EXPECT_DOUBLE_EQ(ranks.at(0).compute, 600);
}

// As a scope around a loader that has one of its own.
TEST(TraceSummary, SpansThatNestCountOnce) {
  const auto ranks =
      summary_of(event(0, "step", 0, 1'000) + event(0, "input", 100, 500) +
                 event(0, "input", 100, 400) + event(0, "wait", 0, 50) + event(0, "wait", 10, 30));
  EXPECT_DOUBLE_EQ(ranks.at(0).input, 400);
  EXPECT_DOUBLE_EQ(ranks.at(0).moving, 50);
  EXPECT_DOUBLE_EQ(ranks.at(0).compute, 550);
}

// The group was destroyed and made again, and counts its operations from 0 again.
TEST(TraceSummary, AnArrivalAfterTheEndIsOfAnotherOperation) {
  const auto ranks = summary_of(event(0, "step", 0, 1'000) + event(1, "step", 0, 1'000) +
                                operation(0, 0, 100, 100, 200) + operation(1, 0, 100, 100, 200) +
                                operation(0, 0, 800, 800, 900) + operation(1, 0, 850, 850, 900) +
                                event(0, "wait", 100, 200));
  EXPECT_DOUBLE_EQ(ranks.at(0).waiting, 0);
  EXPECT_DOUBLE_EQ(ranks.at(0).moving, 100);
}

// A job of an hour.
TEST(TraceSummary, ALongTraceIsNoProblem) {
  std::string text;
  for (int step = 0; step < 20'000; ++step) {
    const double at = step * 100.0;
    text += event(0, "step", at, at + 100) + operation(0, step, at + 50, at + 50, at + 60) +
            event(0, "wait", at + 50, at + 60) + event(0, "input", at, at + 5);
  }
  const auto ranks = summary_of(text);
  EXPECT_EQ(ranks.at(0).steps, 20'000U);
  EXPECT_NEAR(ranks.at(0).moving, 10, 1e-6);
  EXPECT_NEAR(ranks.at(0).input, 5, 1e-6);
}

TEST(TraceSummary, WhatIsNoTraceSaysSo) {
  EXPECT_THAT(summary_text(summary_of("")), HasSubstr("no whole step"));
  EXPECT_THAT(summary_text(summary_of("not json\n{\"ph\":\"X\"},\n[]\n{\"ph\":3},\n")),
              HasSubstr("no whole step"));
  // A file whose writer was killed.
  EXPECT_EQ(summary_of(kLateRank + R"({"ph":"X","pi)").size(), 2U);
}

TEST(StepCount, IsReachedWhenTheSlowestRankHasEnough) {
  server::StepCount count(2);
  EXPECT_EQ(count.fewest(), 0U);
  count.take(event(0, "step", 0, 1) + event(0, "step", 1, 2) + event(1, "compute", 0, 1));
  EXPECT_TRUE(count.is_reached());  // Of rank 1 no step is known.
  count.take(event(1, "step", 0, 1));
  EXPECT_FALSE(count.is_reached());
  const std::string last = event(1, "step", 1, 2);
  count.take(last.substr(0, 30));
  EXPECT_FALSE(count.is_reached());
  count.take(last.substr(30));
  EXPECT_TRUE(count.is_reached());
}

TEST(StepCount, RanksThatASmallerRoundHasNotGotDoNotCount) {
  const auto ranks = [](int count) {
    return fmt::format(R"({{"ph":"M","pid":1000000,"name":"ranks","args":{{"count":{}}}}},)"
                       "\n",
                       count);
  };
  server::StepCount count(3);
  count.take(ranks(2) + event(0, "step", 0, 1) + event(1, "step", 0, 1));
  count.take(ranks(1) + event(0, "step", 1, 2) + event(0, "step", 2, 3));
  EXPECT_TRUE(count.is_reached());
}

TEST(StepCount, WaitsForRanksThatHaveNotEndedAny) {
  server::StepCount count(2);
  count.take(R"({"ph":"M","pid":1000000,"tid":1,"name":"ranks","args":{"count":2}},)"
             "\n");
  constexpr double kSecond = 1e6;
  for (int i = 0; i < 7; ++i) count.take(event(0, "step", i * kSecond, (i + 1) * kSecond));
  EXPECT_FALSE(count.is_reached());
  // Rank 1 does not report any, as it seems.
  count.take(event(0, "step", 7 * kSecond, 8 * kSecond));
  EXPECT_TRUE(count.is_reached());
}

TEST(StepCount, ManyQuickStepsOfOneRankAreNotAll) {
  server::StepCount count(2);
  count.take(R"({"ph":"M","pid":1000000,"tid":1,"name":"ranks","args":{"count":2}},)"
             "\n");
  for (int i = 0; i < 200; ++i) count.take(event(0, "step", i * 500, (i + 1) * 500));
  EXPECT_FALSE(count.is_reached());  // Those of rank 1 come behind these.
  for (int i = 0; i < 2; ++i) count.take(event(1, "step", i * 500, (i + 1) * 500));
  EXPECT_TRUE(count.is_reached());
}

}  // namespace
}  // namespace ddp::trace
