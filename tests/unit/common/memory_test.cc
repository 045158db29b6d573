// Objects that keep memory from one operation to the next, and objects that need none.
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "common/base/inline_function.h"
#include "common/base/recycled.h"
#include "common/base/ring_queue.h"
#include "common/base/shared_text.h"
#include "tests/support/allocations.h"

namespace ddp {
namespace {

// How often `action` allocates.
long allocations_in(const std::function<void()>& action) {
  test::allocations::arm();
  action();
  return test::allocations::disarm();
}

struct Large {
  std::array<std::size_t, 40> numbers{};
};
struct Recyclable : Recycled<Recyclable> {
  Large large;
};

TEST(Recycled, TheNextObjectGetsTheMemoryOfTheLast) {
  if (!test::allocations::kCounting) GTEST_SKIP() << "a sanitizer has its own malloc";
  const auto shared = [] { return std::allocate_shared<Large>(RecyclingAllocator<Large>()); };
  { const auto first = shared(), second = shared(); }
  EXPECT_EQ(allocations_in([&] {
              for (int i = 0; i < 100; ++i) {
                const auto first = shared(), second = shared();
                EXPECT_NE(first, second);
              }
            }),
            0);
  { const auto made = std::make_unique<Recyclable>(); }
  EXPECT_EQ(allocations_in([] {
              for (int i = 0; i < 100; ++i) std::make_unique<Recyclable>()->large.numbers[3] = 1;
            }),
            0);
  // Others' new and delete: as std::function does with what is too large for it.
  struct Call : Recycled<Call> {
    explicit Call(std::shared_ptr<int> sum_in) : sum(std::move(sum_in)) {}
    void operator()() const { ++*sum; }
    std::shared_ptr<int> sum;
  };
  const auto sum = std::make_shared<int>(0);
  { const std::function<void()> call = Call(sum); }
  EXPECT_EQ(allocations_in([&] {
              const std::function<void()> call = Call(sum);
              const std::function<void()> copy = call;  // A second one at the same time.
              call();
            }),
            1);
  EXPECT_EQ(*sum, 1);
  EXPECT_EQ(sum.use_count(), 1);
}

TEST(RingQueue, IsFirstInFirstOutAndKeepsItsMemory) {
  RingQueue<std::shared_ptr<int>> queue;
  int in = 0;
  int out = 0;
  const auto put = [&] { queue.push_back(std::make_shared<int>(in++)); };
  const auto take = [&] { EXPECT_EQ(*queue.pop_front(), out++); };
  for (int round = 0; round < 30; ++round) {
    for (int i = 0; i < round % 11 + 1; ++i) put();
    EXPECT_EQ(*queue.front(), out);
    EXPECT_EQ(*queue[queue.size() - 1], in - 1);
    for (int i = 0; i < round % 7 + 1 && !queue.empty(); ++i) take();
  }
  while (!queue.empty()) take();
  EXPECT_EQ(out, in);
  // What was taken out is not kept.
  auto last = std::make_shared<int>(1);
  queue.push_back(last);
  EXPECT_EQ(queue.pop_front(), last);
  EXPECT_EQ(last.use_count(), 1);

  RingQueue<int> numbers;
  for (int i = 0; i < 20; ++i) numbers.push_back(i);
  while (!numbers.empty()) numbers.pop_front();
  if (!test::allocations::kCounting) return;
  EXPECT_EQ(allocations_in([&] {
              for (int i = 0; i < 1000; ++i) {
                numbers.push_back(i);
                numbers.push_back(i);
                numbers.pop_front();
                numbers.pop_front();
              }
            }),
            0);
}

TEST(InlineFunction, CallsMovesAndDestroysOnce) {
  const auto counter = std::make_shared<int>(0);
  {
    InlineFunction<int(int)> small = [counter](int more) { return *counter += more; };
    EXPECT_EQ(small(2), 2);
    InlineFunction<int(int)> moved = std::move(small);
    EXPECT_EQ(moved(3), 5);
    EXPECT_EQ(counter.use_count(), 2);
    // Too large to be kept inside, and not copyable.
    moved = [counter, large = Large(), own = std::make_unique<int>(7)](int more) {
      return *counter + *own + more + static_cast<int>(large.numbers[0]);
    };
    EXPECT_EQ(counter.use_count(), 2);
    EXPECT_EQ(moved(1), 13);
    small = std::move(moved);
    EXPECT_EQ(small(1), 13);
  }
  EXPECT_EQ(counter.use_count(), 1);
  InlineFunction<std::unique_ptr<int>(std::unique_ptr<int>)> pass = [](std::unique_ptr<int> in) {
    return in;
  };
  EXPECT_EQ(*pass(std::make_unique<int>(4)), 4);
}

TEST(InlineFunction, OfFewVariablesAllocatesNothing) {
  if (!test::allocations::kCounting) GTEST_SKIP() << "a sanitizer has its own malloc";
  const auto counter = std::make_shared<int>(0);
  EXPECT_EQ(allocations_in([&] {
              InlineFunction<void()> call = [counter, a = 1L, b = 2L] {
                *counter += a < b ? 1 : 0;
              };
              InlineFunction<void()> moved = std::move(call);
              moved();
            }),
            0);
  EXPECT_EQ(*counter, 1);
}

TEST(SharedText, IsCopiedWithoutItsCharacters) {
  EXPECT_TRUE(SharedText().empty());
  EXPECT_TRUE(SharedText("").empty());
  EXPECT_EQ(SharedText().str(), "");
  const SharedText text(std::string(100, 'x'));
  const SharedText copy = text;
  EXPECT_EQ(copy.str(), std::string(100, 'x'));
  EXPECT_EQ(&copy.str(), &text.str());
}

}  // namespace
}  // namespace ddp
