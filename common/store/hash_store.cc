#include "common/store/hash_store.h"

#include <utility>

#include "common/store/deadline.h"
#include "common/store/store_errors.h"

namespace ddp {
namespace {

constexpr std::string_view kHashStore = "store";

}  // namespace

template <typename Change>
auto HashStore::change(Change&& change) {
  const std::lock_guard lock(shared_->mutex);
  shared_->changed.notify_all();
  return change(shared_->map);
}

template <typename Ready>
HashStore::Waited HashStore::wait_for(Timeout timeout, Ready&& ready) {
  Waited waited{std::unique_lock(shared_->mutex)};
  waited.came = shared_->changed.wait_until(waited.lock, deadline_after(timeout),
                                            [&] { return ready(shared_->map); });
  return waited;
}

Result<void> HashStore::set(std::string_view key, std::string_view value) {
  change([&](KeyMap& map) { map.put(key, value); });
  return {};
}

Result<std::string> HashStore::get(std::string_view key, Timeout timeout) {
  Result<std::vector<std::string>> values = multi_get({std::string(key)}, timeout);
  if (!values) return values.error();
  return std::move(values->front());
}

Result<std::int64_t> HashStore::add(std::string_view key, std::int64_t delta) {
  return change([&](KeyMap& map) {
    Result<std::int64_t> sum = map.sum(key, delta);
    if (sum) map.put(key, std::to_string(*sum));
    return sum;
  });
}

Result<bool> HashStore::check(const std::vector<std::string>& keys) {
  const std::lock_guard lock(shared_->mutex);
  return shared_->map.has_all(keys);
}

Result<void> HashStore::wait(const std::vector<std::string>& keys, Timeout timeout) {
  const Waited waited = wait_for(timeout, [&](const KeyMap& map) { return map.has_all(keys); });
  if (waited.came) return {};
  return store_errors::missing(kHashStore, shared_->map.missing(keys, true), timeout);
}

Result<std::string> HashStore::compare_set(std::string_view key, std::string_view expected,
                                           std::string_view desired) {
  return change([&](KeyMap& map) -> Result<std::string> {
    const KeyMap::Compared compared = map.compare(key, expected, desired);
    std::string answer(compared.held);
    if (compared.stores) map.put(key, desired);
    return answer;
  });
}

Result<bool> HashStore::delete_key(std::string_view key) {
  const std::lock_guard lock(shared_->mutex);
  return shared_->map.erase(key);
}

Result<std::int64_t> HashStore::num_keys() {
  const std::lock_guard lock(shared_->mutex);
  return static_cast<std::int64_t>(shared_->map.values().size());
}

Result<std::vector<std::string>> HashStore::list_keys() {
  const std::lock_guard lock(shared_->mutex);
  std::vector<std::string> keys;
  for (const auto& [key, value] : shared_->map.values()) keys.push_back(key);
  return keys;
}

Result<void> HashStore::append(std::string_view key, std::string_view value) {
  change([&](KeyMap& map) { map.append(key, value); });
  return {};
}

Result<std::vector<std::string>> HashStore::multi_get(const std::vector<std::string>& keys,
                                                      Timeout timeout) {
  const Waited waited =
      wait_for(timeout, [&](const KeyMap& map) { return map.has_all_values(keys); });
  if (!waited.came)
    return store_errors::missing(kHashStore, shared_->map.missing(keys, false), timeout);
  return shared_->map.values_of(keys);
}

Result<void> HashStore::multi_set(const std::vector<std::string>& keys,
                                  const std::vector<std::string>& values) {
  if (auto right = store_errors::check_pairs(keys.size(), values.size()); !right) return right;
  change([&](KeyMap& map) {
    for (std::size_t i = 0; i < keys.size(); ++i) map.put(keys[i], values[i]);
  });
  return {};
}

Result<void> HashStore::queue_push(std::string_view key, std::string_view value) {
  change([&](KeyMap& map) { map.push(key, value); });
  return {};
}

Result<std::string> HashStore::queue_pop(std::string_view key, Timeout timeout) {
  const Waited waited =
      wait_for(timeout, [&](const KeyMap& map) { return map.queue_len(key) > 0; });
  if (!waited.came) return store_errors::empty_queue(kHashStore, key, timeout);
  return shared_->map.pop(key).value;
}

Result<std::int64_t> HashStore::queue_len(std::string_view key) {
  const std::lock_guard lock(shared_->mutex);
  return static_cast<std::int64_t>(shared_->map.queue_len(key));
}

Result<void> HashStore::barrier(std::string_view key, int world_size, Timeout timeout) {
  if (auto right = store_errors::check_world_size(key, world_size); !right) return right;
  if (Result<std::int64_t> came = add(key, 1); !came) return came.error();
  const auto count = [&](const KeyMap& map) {
    const Result<std::int64_t> sum = map.sum(key, 0);
    return sum ? *sum : 0;
  };
  const Waited waited =
      wait_for(timeout, [&](const KeyMap& map) { return count(map) >= world_size; });
  if (waited.came) return {};
  return store_errors::incomplete_barrier(kHashStore, key, count(shared_->map), world_size,
                                          timeout);
}

Result<std::unique_ptr<Store>> HashStore::clone() {
  return std::unique_ptr<Store>(new HashStore(shared_));
}

}  // namespace ddp
