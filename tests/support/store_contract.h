#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "common/store/store.h"
#include "common/wait/wait_interrupt.h"

namespace ddp::test {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): deadlines of tests.

// Tests what every Store promises. An instantiation provides a maker of stores; all stores of one
// maker show the same keys.
using StoreMaker = std::function<std::unique_ptr<Store>()>;
struct StoreCase {
  std::string name;
  std::function<StoreMaker()> begin;  // A new, empty set of keys.
  // What PyTorch's servers lack.
  bool has_lists = true;
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
  std::vector<std::string> keys = {"by add", "by set", "by set"};
  if (GetParam().compare_set_wakes) keys.emplace_back("by compare_set");
  std::thread setter([&, other = make()] {
    ASSERT_TRUE(other->set("by set", "1"));
    ASSERT_TRUE(other->add("by add", 1));
    ASSERT_TRUE(other->compare_set("by compare_set", "", "x"));
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

TEST_P(StoreContract, GivesSeveralValuesWhenTheLastKeyHasCome) {
  ASSERT_TRUE(store_->set("b", "2"));
  ASSERT_TRUE(store_->set("empty", ""));
  std::thread setter([other = make()] { ASSERT_TRUE(other->set("a", "1")); });
  EXPECT_EQ(store_->multi_get({"a", "b", "empty", "a"}, 20s).value(),
            (std::vector<std::string>{"1", "2", "", "1"}));
  setter.join();
  EXPECT_EQ(store_->multi_get({}, 20s).value(), std::vector<std::string>());
  const auto missed = store_->multi_get({"a", "missing"}, 20ms);
  ASSERT_FALSE(missed);
  EXPECT_EQ(missed.error().code, Errc::kTimeout);
  EXPECT_NE(missed.error().message.find("missing"), std::string::npos) << missed.error().message;
  EXPECT_EQ(store_->add("n", 3).value(), 3);
}

TEST_P(StoreContract, AWaitIsGivenUpByAnInterruptAndDoesNoHarm) {
  int looks = 0;
  {
    const WaitInterrupt interrupt([&] { return ++looks > 2; });
    EXPECT_EQ(store_->get("late", 60s).error().code, Errc::kAborted);
    looks = 0;
    EXPECT_EQ(store_->wait({"late", "later"}, 60s).error().code, Errc::kAborted);
    EXPECT_EQ(looks, 3);
    looks = 0;
    EXPECT_EQ(store_->multi_get({"late"}, 60s).error().code, Errc::kAborted);
  }
  EXPECT_EQ(store_->wait({"late"}, 1ms).error().code, Errc::kTimeout);
  ASSERT_TRUE(make()->set("late", "v"));
  EXPECT_EQ(store_->get("late", 20s).value(), "v");
  EXPECT_EQ(store_->add("n", 3).value(), 3);
}

TEST_P(StoreContract, ListsItsKeys) {
  ASSERT_TRUE(store_->set("a", "1"));
  if (!GetParam().has_lists) return expect_refused(store_->list_keys());
  ASSERT_TRUE(store_->set("b/c", "1"));
  ASSERT_TRUE(store_->set("/", "1"));
  ASSERT_TRUE(store_->set("gone", "1"));
  ASSERT_TRUE(store_->delete_key("gone").value());
  std::vector<std::string> keys = make()->list_keys().value();
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(keys, (std::vector<std::string>{"/", "a", "b/c"}));
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
