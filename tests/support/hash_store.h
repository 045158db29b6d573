#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/base/key_map.h"
#include "common/store/store.h"
#include "common/store/store_errors.h"
#include "common/wait/deadline.h"
#include "common/wait/wait_interrupt.h"

namespace ddp::test {

// A store inside one process, for ranks that are threads of the test. Any number of threads may use
// one object.
class HashStore final : public Store {
 public:
  Result<void> set(std::string_view key, std::string_view value) override {
    const auto lock = change();
    map().put(key, value);
    return {};
  }
  Result<std::string> get(std::string_view key, Timeout timeout) override {
    const std::vector<std::string> keys{std::string(key)};
    auto lock = look();
    const Result<void> there = wait_for(lock, keys, timeout);
    if (!there) return there.error();
    return *map().find(key);
  }
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Timeout timeout) override {
    auto lock = look();
    const Result<void> there = wait_for(lock, keys, timeout);
    if (!there) return there.error();
    std::vector<std::string> values;
    for (const std::string& key : keys) values.push_back(*map().find(key));
    return values;
  }
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override {
    const auto lock = change();
    Result<std::int64_t> sum = map().sum(key, delta);
    if (sum) map().put(key, std::to_string(*sum));
    return sum;
  }
  Result<bool> check(const std::vector<std::string>& keys) override {
    const auto lock = look();
    return map().has_all(keys);
  }
  Result<void> wait(const std::vector<std::string>& keys, Timeout timeout) override {
    auto lock = look();
    return wait_for(lock, keys, timeout);
  }
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) override {
    const auto lock = change();
    const KeyMap::Compared compared = map().compare(key, expected, desired);
    std::string answer(compared.held);
    if (compared.stores) map().put(key, desired);
    return answer;
  }
  Result<bool> delete_key(std::string_view key) override {
    const auto lock = look();
    return map().erase(key);
  }
  Result<std::int64_t> num_keys() override {
    const auto lock = look();
    return static_cast<std::int64_t>(map().values().size());
  }
  Result<std::vector<std::string>> list_keys() override {
    const auto lock = look();
    std::vector<std::string> keys;
    for (const auto& [key, value] : map().values()) keys.push_back(key);
    return keys;
  }

 private:
  static constexpr std::string_view kName = "store";
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    KeyMap map;  // Guarded by mutex.
  };

  KeyMap& map() { return shared_->map; }
  std::unique_lock<std::mutex> look() { return std::unique_lock(shared_->mutex); }
  // The lock, for a change that wakes those who wait once it is released.
  std::unique_lock<std::mutex> change() {
    auto lock = look();
    shared_->changed.notify_all();
    return lock;
  }
  Result<void> wait_for(std::unique_lock<std::mutex>& lock, const std::vector<std::string>& keys,
                        Timeout timeout) {
    const TimePoint since = Clock::now();
    const TimePoint deadline = deadline_after(timeout);
    for (;;) {
      if (map().has_all(keys)) return {};
      if (Clock::now() >= deadline) return store::missing_keys(kName, map().missing(keys), timeout);
      if (WaitInterrupt::raised()) return store::given_up(kName);
      shared_->changed.wait_until(lock, WaitInterrupt::next_look(since, deadline));
    }
  }

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();  // Shared by all copies.
};

}  // namespace ddp::test
