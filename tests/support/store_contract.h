#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "common/store/store.h"

namespace ddp::test {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): deadlines of tests.

// Tests what every Store promises. An instantiation provides a maker of stores; all stores of one
// maker show the same keys.
using StoreMaker = std::function<std::unique_ptr<Store>()>;
struct StoreCase {
  std::string name;
  std::function<StoreMaker()> begin;  // A new, empty set of keys.
  // Operations that PyTorch's servers lack.
  bool has_append = true;
  bool has_queues_and_lists = true;
  bool compare_set_wakes = true;
  bool is_known_to_lack_it = true;  // From its dialect. If false, it closes the connection.
};
inline void PrintTo(const StoreCase& store_case, std::ostream* out) { *out << store_case.name; }

class StoreContract : public testing::TestWithParam<StoreCase> {
 protected:
  void SetUp() override {
    make_ = GetParam().begin();
    store_ = make_();
  }
  std::unique_ptr<Store> make() { return make_(); }
  // An operation that the server lacks fails with a reason, and the object remains usable.
  template <typename T>
  void expect_refused(const Result<T>& result) {
    if (!GetParam().is_known_to_lack_it) return;
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Errc::kInvalidArgument);
    EXPECT_NE(result.error().message.find("PyTorch"), std::string::npos) << result.error().message;
    EXPECT_EQ(store_->add("after a refusal", 0).value(), 0);
  }

  StoreMaker make_;
  std::unique_ptr<Store> store_;
};

TEST_P(StoreContract, GivesWhatWasSetOfAnyBytes) {
  const std::string all_bytes = [] {
    std::string bytes;
    for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
    return bytes;
  }();
  ASSERT_TRUE(store_->set(all_bytes, all_bytes));
  ASSERT_TRUE(store_->set("empty", ""));
  ASSERT_TRUE(store_->set("", "of the empty key"));
  auto other = make();
  EXPECT_EQ(other->get(all_bytes, 10s).value(), all_bytes);
  EXPECT_EQ(other->get("empty", 10s).value(), "");
  EXPECT_EQ(other->get("", 10s).value(), "of the empty key");
  ASSERT_TRUE(other->set("empty", "no more"));
  EXPECT_EQ(store_->get("empty", 10s).value(), "no more");
}

TEST_P(StoreContract, AddsToDecimalText) {
  EXPECT_EQ(store_->add("n", 5).value(), 5);
  EXPECT_EQ(store_->add("n", -7).value(), -2);
  EXPECT_EQ(store_->get("n", 10s).value(), "-2");
  ASSERT_TRUE(store_->set("n", " 12abc"));
  EXPECT_EQ(store_->add("n", 0).value(), 12);
}

TEST_P(StoreContract, ComparesAndSets) {
  EXPECT_EQ(store_->compare_set("k", "", "first").value(), "first");
  EXPECT_EQ(store_->compare_set("k", "first", "second").value(), "second");
  EXPECT_EQ(store_->compare_set("k", "nope", "third").value(), "second");
  EXPECT_EQ(store_->get("k", 10s).value(), "second");
  EXPECT_EQ(store_->compare_set("absent", "x", "y").value(), "x");
  EXPECT_FALSE(store_->check({"absent"}).value());
  ASSERT_TRUE(store_->set("empty", ""));
  EXPECT_EQ(store_->compare_set("empty", "", "full").value(), "full");
}

TEST_P(StoreContract, ChecksDeletesAndCounts) {
  ASSERT_TRUE(store_->set("a", "1"));
  ASSERT_TRUE(store_->set("b", "2"));
  EXPECT_TRUE(store_->check({"a", "b"}).value());
  EXPECT_TRUE(store_->check({}).value());
  EXPECT_FALSE(store_->check({"a", "c"}).value());
  EXPECT_EQ(store_->num_keys().value(), 2);
  EXPECT_TRUE(store_->delete_key("a").value());
  EXPECT_FALSE(store_->delete_key("a").value());
  EXPECT_EQ(store_->num_keys().value(), 1);
  EXPECT_FALSE(store_->check({"a"}).value());
}

TEST_P(StoreContract, AWaitThatTimesOutNamesTheMissingKeysAndDoesNoHarm) {
  ASSERT_TRUE(store_->set("here", "1"));
  const Result<void> waited = store_->wait({"here", "missing 1", "missing 2"}, 20ms);
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().code, Errc::kTimeout);
  EXPECT_NE(waited.error().message.find("missing 1"), std::string::npos) << waited.error().message;
  EXPECT_NE(waited.error().message.find("missing 2"), std::string::npos);
  EXPECT_EQ(waited.error().message.find("here'"), std::string::npos) << waited.error().message;
  EXPECT_EQ(store_->get("missing 1", 0ms).error().code, Errc::kTimeout);
  // The object and the key still work.
  ASSERT_TRUE(make()->set("missing 1", "late"));
  EXPECT_EQ(store_->get("missing 1", 10s).value(), "late");
  EXPECT_EQ(store_->add("n", 3).value(), 3);
}

TEST_P(StoreContract, AWaitEndsWhenTheLastKeyComesWhateverSetsIt) {
  const StoreCase& has = GetParam();
  std::vector<std::string> keys = {"by add", "by set", "by set", "by multi_set"};
  if (has.compare_set_wakes) keys.emplace_back("by compare_set");
  if (has.has_append) keys.emplace_back("by append");
  if (has.has_queues_and_lists) keys.emplace_back("by queue_push");
  std::thread setter([&, other = make()] {
    ASSERT_TRUE(other->set("by set", "1"));
    ASSERT_TRUE(other->add("by add", 1));
    ASSERT_TRUE(other->multi_set({"a", "by multi_set"}, {"1", "2"}));
    ASSERT_TRUE(other->compare_set("by compare_set", "", "x"));
    if (has.has_append) {
      ASSERT_TRUE(other->append("by append", "x"));
    }
    if (has.has_queues_and_lists) {
      ASSERT_TRUE(other->queue_push("by queue_push", "x"));
    }
  });
  const Result<void> waited = store_->wait(keys, 20s);
  EXPECT_TRUE(waited) << waited.error().message;
  setter.join();
}

TEST_P(StoreContract, AGetEndsWhenTheKeyComesAndGivesItsValue) {
  for (const std::string value : {"late", ""}) {
    const std::string key = "k" + value;
    std::thread setter([&, other = make()] {
      ASSERT_TRUE(other->set("other", "1"));
      ASSERT_TRUE(other->set(key, value));
    });
    EXPECT_EQ(store_->get(key, 20s).value(), value);
    EXPECT_EQ(store_->get(key, 20s).value(), value);
    EXPECT_EQ(store_->get("other", 20s).value(), "1");
    setter.join();
  }
}

TEST_P(StoreContract, GetsAndSetsSeveralAtOnce) {
  ASSERT_TRUE(store_->multi_set({"a", "b", "a"}, {"1", "2", std::string(100'000, '3')}));
  EXPECT_EQ(store_->num_keys().value(), 2);
  const std::vector<std::string> values = make()->multi_get({"b", "a", "b"}, 10s).value();
  EXPECT_EQ(values, (std::vector<std::string>{"2", std::string(100'000, '3'), "2"}));
  EXPECT_TRUE(store_->multi_get({}, 0ms).value().empty());
  EXPECT_TRUE(store_->multi_set({}, {}));
  EXPECT_EQ(store_->multi_set({"a"}, {}).error().code, Errc::kInvalidArgument);
  const auto missing = store_->multi_get({"a", "missing 1"}, 20ms);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Errc::kTimeout);
  EXPECT_NE(missing.error().message.find("missing 1'"), std::string::npos);
  EXPECT_EQ(missing.error().message.find("a'"), std::string::npos) << missing.error().message;
  EXPECT_EQ(store_->get("b", 10s).value(), "2");
}

TEST_P(StoreContract, GetsThousandsAtOnce) {
  std::vector<std::string> keys, values;
  for (int i = 0; i < 3'000; ++i) {
    keys.push_back("key " + std::to_string(i));
    values.push_back(std::to_string(i * i));
  }
  ASSERT_TRUE(store_->multi_set(keys, values));
  EXPECT_EQ(make()->multi_get(keys, 20s).value(), values);
  EXPECT_EQ(store_->num_keys().value(), 3'000);
}

TEST_P(StoreContract, AppendsAndCreates) {
  if (!GetParam().has_append) return expect_refused(store_->append("k", "a"));
  ASSERT_TRUE(store_->append("k", "a"));
  ASSERT_TRUE(make()->append("k", std::string("\0b", 2)));
  ASSERT_TRUE(store_->append("k", ""));
  EXPECT_EQ(store_->get("k", 10s).value(), std::string("a\0b", 3));
  EXPECT_EQ(store_->num_keys().value(), 1);
}

TEST_P(StoreContract, ListsItsKeys) {
  ASSERT_TRUE(store_->set("a", "1"));
  if (!GetParam().has_queues_and_lists) return expect_refused(store_->list_keys());
  ASSERT_TRUE(store_->set("b/c", "1"));
  ASSERT_TRUE(store_->set("/", "1"));
  ASSERT_TRUE(store_->set("gone", "1"));
  ASSERT_TRUE(store_->delete_key("gone").value());
  ASSERT_TRUE(store_->queue_push("queue", "1"));
  std::vector<std::string> keys = make()->list_keys().value();
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(keys, (std::vector<std::string>{"/", "a", "b/c"}));
}

TEST_P(StoreContract, QueuesGiveWhatCameFirst) {
  if (!GetParam().has_queues_and_lists) {
    expect_refused(store_->queue_push("q", "1"));
    expect_refused(store_->queue_len("q"));
    return expect_refused(store_->queue_pop("q", Store::kDoNotWait));
  }
  EXPECT_EQ(store_->queue_len("q").value(), 0);
  EXPECT_EQ(store_->queue_pop("q", Store::kDoNotWait).error().code, Errc::kNotFound);
  const auto late = store_->queue_pop("q", 20ms);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Errc::kTimeout);
  EXPECT_NE(late.error().message.find("q'"), std::string::npos) << late.error().message;
  for (const char* const value : {"1", "", "3"}) ASSERT_TRUE(store_->queue_push("q", value));
  auto other = make();
  EXPECT_EQ(other->queue_len("q").value(), 3);
  EXPECT_TRUE(other->check({"q"}).value());
  EXPECT_EQ(other->num_keys().value(), 0);
  EXPECT_FALSE(other->delete_key("q").value());
  EXPECT_EQ(other->queue_pop("q", Store::kDoNotWait).value(), "1");
  EXPECT_EQ(store_->queue_pop("q", 10s).value(), "");
  EXPECT_EQ(other->queue_pop("q", 10s).value(), "3");
  EXPECT_EQ(store_->queue_len("q").value(), 0);
  EXPECT_FALSE(store_->check({"q"}).value());
}

TEST_P(StoreContract, EachElementOfAQueueIsPoppedOnce) {
  if (!GetParam().has_queues_and_lists) return;
  constexpr int kThreads = 4, kEach = 25;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t, store = make()] {
      for (int i = 0; i < kEach; ++i) {
        ASSERT_TRUE(store->queue_push("in", std::to_string(t * kEach + i)));
      }
    });
    threads.emplace_back([store = make()] {
      for (int i = 0; i < kEach; ++i) {
        const Result<std::string> value = store->queue_pop("in", 20s);
        ASSERT_TRUE(value) << value.error().message;
        ASSERT_EQ(store->add("seen " + *value, 1).value(), 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store_->queue_len("in").value(), 0);
  EXPECT_EQ(store_->num_keys().value(), kThreads * kEach);
}

TEST_P(StoreContract, ABarrierOpensForTheLastAndStaysOpen) {
  const auto alone = store_->barrier("not all", 3, 20ms);
  ASSERT_FALSE(alone);
  EXPECT_EQ(alone.error().code, Errc::kTimeout);
  EXPECT_NE(alone.error().message.find("1 of 3"), std::string::npos) << alone.error().message;
  EXPECT_EQ(store_->barrier("none", 0, 20ms).error().code, Errc::kInvalidArgument);
  constexpr int kThreads = 4, kRounds = 10;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([kThreads, store = make()] {
      for (int i = 0; i < kRounds; ++i) {
        const std::string round = std::to_string(i);
        ASSERT_TRUE(store->add("before " + round, 1));
        const Result<void> passed = store->barrier("barrier " + round, kThreads, 20s);
        ASSERT_TRUE(passed) << passed.error().message;
        ASSERT_EQ(store->add("before " + round, 0).value(), kThreads);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(store_->barrier("barrier 0", kThreads, 0ms));
}

TEST_P(StoreContract, AClonesKeysAreTheSame) {
  auto clone = store_->clone().value();
  ASSERT_TRUE(clone->set("k", "v"));
  EXPECT_EQ(make()->get("k", 10s).value(), "v");
  std::thread setter([&] { ASSERT_TRUE(clone->set("late", "1")); });
  EXPECT_EQ(store_->get("late", 20s).value(), "1");
  setter.join();
  store_.reset();
  EXPECT_EQ(clone->get("k", 10s).value(), "v");
}

TEST_P(StoreContract, AddAndCompareSetAreAtomic) {
  constexpr int kThreads = 4, kRounds = 25;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([name = std::to_string(t), store = make()] {
      for (int i = 0; i < kRounds; ++i) {
        ASSERT_TRUE(store->add("sum", 1));
        // Takes the lock by setting it to its own unique name.
        while (store->compare_set("lock", "", name).value() != name) {
          std::this_thread::sleep_for(500us);  // Otherwise the holder hardly gets a turn.
        }
        const int count =
            store->check({"count"}).value() ? std::stoi(store->get("count", 20s).value()) : 0;
        ASSERT_TRUE(store->set("count", std::to_string(count + 1)));
        ASSERT_TRUE(store->delete_key("lock").value());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store_->add("sum", 0).value(), kThreads * kRounds);
  EXPECT_EQ(store_->get("count", 10s).value(), std::to_string(kThreads * kRounds));
}

TEST_P(StoreContract, EveryoneMeetsAtABarrierOfKeys) {
  constexpr int kThreads = 8, kRounds = 20;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t, store = make()] {
      for (int i = 0; i < kRounds; ++i) {
        std::vector<std::string> keys;
        for (int k = 0; k < kThreads; ++k) {
          keys.push_back(std::to_string(i) + "/" + std::to_string(k));
        }
        ASSERT_TRUE(store->set(keys[static_cast<std::size_t>(t)], std::to_string(t)));
        const Result<void> waited = store->wait(keys, 20s);
        ASSERT_TRUE(waited) << waited.error().message;
        ASSERT_TRUE(store->check(keys).value());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store_->num_keys().value(), kThreads * kRounds);
}

}  // namespace ddp::test
