#include "common/store/hash_store.h"

#include "common/store/deadline.h"

namespace ddp {

void HashStore::put(std::string_view key, std::string_view value) {
  map_.put(key, value);
  changed_.notify_all();
}

Result<void> HashStore::set(std::string_view key, std::string_view value) {
  const std::lock_guard lock(mutex_);
  put(key, value);
  return {};
}

Result<std::string> HashStore::get(std::string_view key, Timeout timeout) {
  std::unique_lock lock(mutex_);
  Result<void> there = wait_locked(lock, {std::string(key)}, timeout);
  if (!there) return there.error();
  return *map_.find(key);
}

Result<std::int64_t> HashStore::add(std::string_view key, std::int64_t delta) {
  const std::lock_guard lock(mutex_);
  Result<std::int64_t> sum = map_.sum(key, delta);
  if (sum) put(key, std::to_string(*sum));
  return sum;
}

Result<bool> HashStore::check(const std::vector<std::string>& keys) {
  const std::lock_guard lock(mutex_);
  return map_.has_all(keys);
}

Result<void> HashStore::wait(const std::vector<std::string>& keys, Timeout timeout) {
  std::unique_lock lock(mutex_);
  return wait_locked(lock, keys, timeout);
}

Result<void> HashStore::wait_locked(std::unique_lock<std::mutex>& lock,
                                    const std::vector<std::string>& keys, Timeout timeout) {
  const TimePoint deadline = deadline_after(timeout);
  if (changed_.wait_until(lock, deadline, [&] { return map_.has_all(keys); })) return {};
  return map_.missing(keys, timeout);
}

Result<std::string> HashStore::compare_set(std::string_view key, std::string_view expected,
                                           std::string_view desired) {
  const std::lock_guard lock(mutex_);
  bool stores = false;
  std::string answer = map_.compare(key, expected, desired, stores);
  if (stores) put(key, answer);
  return answer;
}

Result<bool> HashStore::delete_key(std::string_view key) {
  const std::lock_guard lock(mutex_);
  return map_.erase(key);
}

Result<std::int64_t> HashStore::num_keys() {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(map_.size());
}

}  // namespace ddp
