#include "common/wire/trace_ring.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddp::wire {
namespace {

constexpr std::size_t kAll = 1'000'000;

TraceSpan span_of(std::int64_t index) {
  TraceSpan span;
  span.index = index;
  span.begin_ns = index;
  span.end_ns = index;
  set_lane(span, "step");
  set_name(span, "a name that is far too long for the place that it has");
  return span;
}

TEST(TraceRing, GivesEachSpanOnceInOrder) {
  const auto ring = std::make_unique<TraceRing>();
  std::uint64_t read = 0;
  EXPECT_TRUE(take_spans(*ring, read, kAll, false).spans.empty());
  for (int i = 0; i < 10; ++i) put_span(*ring, span_of(i));
  const NewSpans first = take_spans(*ring, read, 4, false);
  ASSERT_EQ(first.spans.size(), 4U);
  EXPECT_EQ(first.spans[3].index, 3);
  EXPECT_EQ(lane_of(first.spans[0]), "step");
  EXPECT_EQ(name_of(first.spans[0]), "a name that is far too long for ");
  const NewSpans rest = take_spans(*ring, read, kAll, false);
  ASSERT_EQ(rest.spans.size(), 6U);
  EXPECT_EQ(rest.spans[0].index, 4);
  EXPECT_EQ(first.lost + rest.lost, 0U);
  EXPECT_TRUE(take_spans(*ring, read, kAll, true).spans.empty());
}

TEST(TraceRing, CountsWhatWasOverwritten) {
  const auto ring = std::make_unique<TraceRing>();
  for (std::size_t i = 0; i < kTraceSpans + 5; ++i) put_span(*ring, span_of(static_cast<int>(i)));
  std::uint64_t read = 0;
  const NewSpans taken = take_spans(*ring, read, kAll, false);
  EXPECT_EQ(taken.lost, 5U);
  ASSERT_EQ(taken.spans.size(), kTraceSpans);
  EXPECT_EQ(taken.spans[0].index, 5);
}

// A rank that was killed in the middle of a span.
TEST(TraceRing, ASpanThatIsNeverFinishedHoldsUpTheOthersOnlyWhileItsWriterLives) {
  const auto ring = std::make_unique<TraceRing>();
  put_span(*ring, span_of(0));
  ring->spans.fetch_add(1);
  TraceEntry& entry = ring->entries[1];
  entry.version.fetch_add(1);
  put_span(*ring, span_of(2));
  std::uint64_t read = 0;
  EXPECT_EQ(take_spans(*ring, read, kAll, false).spans.size(), 1U);
  EXPECT_TRUE(take_spans(*ring, read, kAll, false).spans.empty());
  const NewSpans rest = take_spans(*ring, read, kAll, true);
  ASSERT_EQ(rest.spans.size(), 1U);
  EXPECT_EQ(rest.spans[0].index, 2);
  EXPECT_EQ(rest.lost, 1U);
}

// With TSan, this shows that a reader and writers agree.
TEST(TraceRing, ManyThreadsMayWriteWhileOneReads) {
  constexpr int kThreads = 4;
  constexpr int kEach = 20'000;
  const auto ring = std::make_unique<TraceRing>();
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&ring, &running] {
      for (int i = 0; i < kEach; ++i) put_span(*ring, span_of(i));
      --running;
    });
  }
  std::uint64_t read = 0;
  std::uint64_t seen = 0;
  std::uint64_t last = 0;
  while (true) {
    const bool is_last = running == 0;
    const NewSpans taken = take_spans(*ring, read, kAll, is_last);
    seen += taken.spans.size() + taken.lost;
    for (const TraceSpan& span : taken.spans) {
      ASSERT_GT(span.number, last);
      last = span.number;
      ASSERT_EQ(span.begin_ns, span.index);
      ASSERT_EQ(span.end_ns, span.index);
    }
    if (is_last) break;
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(seen, static_cast<std::uint64_t>(kThreads) * kEach);
}

}  // namespace
}  // namespace ddp::wire
