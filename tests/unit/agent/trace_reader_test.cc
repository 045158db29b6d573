// What the agent reads from its workers' traces, and says of it.
#include "agent/process/trace_reader.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace ddp::agent {
namespace {

using nlohmann::json;

std::vector<json> parsed(const std::string& events) {
  if (events.empty()) return {};
  return json::parse("[" + events.substr(0, events.size() - 2) + "]").get<std::vector<json>>();
}

std::vector<json> spans_of(const std::string& events) {
  std::vector<json> spans = parsed(events);
  std::erase_if(spans, [](const json& event) { return event.at("ph") == "M"; });
  return spans;
}

TEST(ClockOffset, TheQuickestExchangeCounts) {
  ClockOffset offset;
  EXPECT_FALSE(offset.is_known());
  // The other clock is ahead by 1,000,000.
  offset.exchange(0, 1'000'500, 1'000'600, 1'100);  // 500 there, 500 back.
  EXPECT_EQ(offset.ahead(), 1'000'000);
  offset.exchange(2'000, 1'009'000, 1'009'000, 9'100);  // 7,000 there, 100 back: a bad guess.
  EXPECT_EQ(offset.ahead(), 1'000'000);
  offset.exchange(20'000, 1'020'010, 1'020'020, 20'040);  // 10 there, 20 back.
  EXPECT_EQ(offset.ahead(), 999'995);
}

// Random delays and a clock that runs 100 parts per million faster.
TEST(ClockOffset, FollowsAClockThatDrifts) {
  std::mt19937_64 random(7);
  std::exponential_distribution<double> delay(1.0 / 100'000);
  ClockOffset offset;
  const auto other = [](double time) { return time * 1.0001 + 5e9; };
  for (int i = 0; i < 1'000; ++i) {
    const double left = i * 1e8;
    const double there = left + 20'000 + delay(random);
    const double answered = there + 10'000;
    const double back = answered + 20'000 + delay(random);
    offset.exchange(static_cast<std::int64_t>(left), static_cast<std::int64_t>(other(there)),
                    static_cast<std::int64_t>(other(answered)), static_cast<std::int64_t>(back));
    if (i < 16) continue;
    // Half of a good exchange, and the drift within 16 of them.
    EXPECT_NEAR(static_cast<double>(offset.ahead()), other(back) - back, 250'000) << i;
  }
}

class TraceReaderTest : public testing::Test {
 protected:
  void begin(Round round, int local_size = 2) {
    memory_ = std::move(RoundMemory::create(local_size, round)).value();
    reader_.begin_round(*memory_, round, 4);
  }
  void put(int local, std::int64_t step) {
    const MappedPart part = memory_->map(local, wire::kTraceOffset, wire::kTraceBytes);
    auto& ring = *reinterpret_cast<wire::TraceRing*>(part.bytes());
    if (ring.on == 0) return;
    wire::TraceSpan span;
    span.index = step;
    span.begin_ns = 5'000;
    span.end_ns = 7'500;
    wire::set_lane(span, "step");
    wire::set_name(span, "step");
    wire::put_span(ring, span);
  }
  wire::TraceEvents ask(bool names = false) {
    return reader_.answer(now_, {.clock = "here", .zero_ns = 1'000, .names = names});
  }

  TraceReader reader_{"n2", "here"};
  std::unique_ptr<RoundMemory> memory_;
  TimePoint now_ = Clock::now();
};

TEST_F(TraceReaderTest, NothingIsRecordedUntilSomebodyAsks) {
  begin(3);
  put(0, 1);
  EXPECT_EQ(reader_.rest(now_, true), std::nullopt);
  EXPECT_EQ(ask().events, "");
  put(0, 2);
  put(1, 2);
  const std::string events = ask().events;
  const std::vector<json> spans = spans_of(events);
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0], json::parse(R"({"ph":"X","pid":5,"tid":5000,"cat":"step","name":"step 2",
      "ts":4.0,"dur":2.5,"args":{"rank":4,"round":3,"step":2}})"));
  EXPECT_EQ(spans[1].at("args").at("rank"), 5);
  EXPECT_THAT(events,
              testing::HasSubstr(R"~("name":"process_name","args":{"name":"rank 4 (n2)"})~"));
  EXPECT_THAT(events, testing::HasSubstr(R"("name":"thread_name","args":{"name":"step"})"));
  EXPECT_EQ(ask().events, "");
}

TEST_F(TraceReaderTest, NamesComeAgainForWhoDoesNotKnowThem) {
  begin(0);
  ask();
  put(0, 1);
  EXPECT_GT(parsed(ask().events).size(), 1U);
  put(0, 2);
  EXPECT_EQ(parsed(ask().events).size(), 1U);
  put(0, 3);
  EXPECT_GT(parsed(ask(true).events).size(), 1U);
}

TEST_F(TraceReaderTest, WhatARoundHasLeftIsToldAfterIt) {
  begin(0);
  ask();
  put(1, 1);
  reader_.end_round();
  memory_.reset();
  begin(1);
  put(1, 2);  // The new round is traced, too.
  const auto rest = reader_.rest(now_, false);
  ASSERT_TRUE(rest);
  const std::vector<json> spans = spans_of(rest->events);
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].at("args"), json({{"rank", 5}, {"round", 0}, {"step", 1}}));
  EXPECT_EQ(spans[1].at("args"), json({{"rank", 5}, {"round", 1}, {"step", 2}}));
  EXPECT_EQ(reader_.rest(now_, true), std::nullopt);
}

TEST_F(TraceReaderTest, StopsWhenNobodyAsksAnyMore) {
  begin(0);
  ask();
  put(0, 1);
  now_ += TraceReader::kLease + Duration(1);
  reader_.expire(now_);
  put(0, 1);  // It is off.
  ask();
  put(0, 2);
  ASSERT_EQ(spans_of(ask().events).size(), 1U);
}

// What was recorded until somebody noticed is old.
TEST_F(TraceReaderTest, ALaterQuestionBeginsAnew) {
  begin(0);
  ask();
  put(0, 1);
  now_ += TraceReader::kLease + Duration(1);
  EXPECT_EQ(ask().events, "");
  put(0, 2);
  EXPECT_EQ(spans_of(ask().events).size(), 1U);
}

TEST_F(TraceReaderTest, AnAnswerIsBoundedAndSaysThatThereIsMore) {
  begin(0, 1);
  ask();
  for (std::size_t i = 0; i < TraceReader::kMostSpans + 1; ++i) put(0, static_cast<int>(i));
  const wire::TraceEvents first = ask();
  EXPECT_TRUE(first.more);
  EXPECT_EQ(spans_of(first.events).size(), TraceReader::kMostSpans);
  const wire::TraceEvents second = ask();
  EXPECT_FALSE(second.more);
  EXPECT_EQ(spans_of(second.events).size(), 1U);
  EXPECT_EQ(first.lost + second.lost, 0U);
}

TEST_F(TraceReaderTest, AnotherMachinesClockMustBeKnownFirst) {
  begin(0, 1);
  const auto ask_from_elsewhere = [&](std::int64_t answered, std::int64_t received) {
    return reader_.answer(now_, {.clock = "there",
                                 .zero_ns = 0,
                                 .answered_ns = answered,
                                 .received_ns = received,
                                 .sent_ns = received});
  };
  const wire::TraceEvents first = ask_from_elsewhere(0, 0);
  EXPECT_TRUE(first.more);
  put(0, 1);
  const auto now_ns = std::chrono::nanoseconds(now_.time_since_epoch()).count();
  const std::int64_t ahead = 1'000'000'000'000;
  const auto spans = spans_of(ask_from_elsewhere(now_ns, now_ns + ahead).events);
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_NEAR(spans[0].at("ts").get<double>(), (5'000 + ahead) / 1'000, 0.01);
  // Another coordinator.
  put(0, 2);
  const wire::TraceEvents other = reader_.answer(now_, {.clock = "elsewhere", .sent_ns = 1});
  EXPECT_EQ(other.events, "");
  EXPECT_TRUE(other.more);
}

TEST_F(TraceReaderTest, ACheckpointsShareIsASpanOfItsRank) {
  begin(2, 1);
  ask();
  reader_.saved(4, {.round = 2, .step = 50, .bytes = 10, .seconds = 0.25});
  const auto spans = spans_of(ask().events);
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].at("cat"), "checkpoint-writer");
  EXPECT_NEAR(spans[0].at("dur").get<double>(), 250'000, 1);
  EXPECT_EQ(spans[0].at("args").at("index"), 50);
}

// Whatever a worker writes into its memory, the trace stays readable.
TEST(TraceText, TextsOfWorkersMayHoldAnything) {
  wire::TraceSpan span;
  wire::set_lane(span, "a \"lane\"\n");
  wire::set_name(span, "\xff\xfe}");
  std::string text;
  TraceText().append(text, {.rank = 0, .round = 0, .host = "h\"", .group = ""}, span, -5);
  const auto spans = spans_of(text);
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].at("ts"), -0.005);
}

TEST(TraceText, OperationsHaveTheirGroupsRowAndMessagesMayOverlap) {
  wire::TraceSpan span;
  span.group = 0;
  span.index = 7;
  span.bytes = 4'096;
  span.issued_ns = 1'000;
  span.begin_ns = 2'500;
  span.end_ns = 9'000;
  wire::set_name(span, "all_reduce");
  std::string text;
  TraceText writer;
  const TraceText::Place place{.rank = 1, .round = 2, .host = "n0", .group = "world"};
  writer.append(text, place, span, 0);
  auto events = spans_of(text);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].at("cat"), "collective");
  EXPECT_EQ(events[0].at("args"), json::parse(R"({"rank":1,"round":2,"sequence":7,"group":"world",
      "bytes":4096,"queued_us":1.5})"));
  // The next one was called before this one had ended.
  wire::TraceSpan next = span;
  next.begin_ns = 8'000;
  next.end_ns = 10'000;
  text.clear();
  writer.append(text, place, next, 0);
  EXPECT_EQ(spans_of(text)[0].at("ts"), 9.0);
  EXPECT_EQ(spans_of(text)[0].at("dur"), 1.0);
  EXPECT_EQ(spans_of(text)[0].at("args").at("queued_us"), 8.0);
  wire::set_lane(span, wire::kMessagesLane);
  wire::set_name(span, "send");
  span.peer = 3;
  text.clear();
  writer.append(text, place, span, 0);
  events = spans_of(text);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].at("ph"), "b");
  EXPECT_EQ(events[1].at("ph"), "e");
  EXPECT_EQ(events[0].at("id"), events[1].at("id"));
  EXPECT_EQ(events[0].at("args").at("peer"), 3);
}

}  // namespace
}  // namespace ddp::agent
