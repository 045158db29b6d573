#include "common/store/prefix_store.h"

#include <utility>

namespace ddp {

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> store)
    : prefix_(std::move(prefix)), store_(std::move(store)) {}

std::string PrefixStore::join(std::string_view key) const {
  return fmt::format("{}/{}", prefix_, key);
}

std::vector<std::string> PrefixStore::join(const std::vector<std::string>& keys) const {
  std::vector<std::string> joined;
  joined.reserve(keys.size());
  for (const std::string& key : keys) joined.push_back(join(std::string_view(key)));
  return joined;
}

Result<void> PrefixStore::set(std::string_view key, std::string_view value) {
  return store_->set(join(key), value);
}
Result<std::string> PrefixStore::get(std::string_view key, Timeout timeout) {
  return store_->get(join(key), timeout);
}
Result<std::int64_t> PrefixStore::add(std::string_view key, std::int64_t delta) {
  return store_->add(join(key), delta);
}
Result<bool> PrefixStore::check(const std::vector<std::string>& keys) {
  return store_->check(join(keys));
}
Result<void> PrefixStore::wait(const std::vector<std::string>& keys, Timeout timeout) {
  return store_->wait(join(keys), timeout);
}
Result<std::string> PrefixStore::compare_set(std::string_view key, std::string_view expected,
                                             std::string_view desired) {
  return store_->compare_set(join(key), expected, desired);
}
Result<bool> PrefixStore::delete_key(std::string_view key) { return store_->delete_key(join(key)); }
Result<std::int64_t> PrefixStore::num_keys() { return store_->num_keys(); }
Result<void> PrefixStore::append(std::string_view key, std::string_view value) {
  return store_->append(join(key), value);
}
Result<std::vector<std::string>> PrefixStore::multi_get(const std::vector<std::string>& keys,
                                                        Timeout timeout) {
  return store_->multi_get(join(keys), timeout);
}
Result<void> PrefixStore::multi_set(const std::vector<std::string>& keys,
                                    const std::vector<std::string>& values) {
  return store_->multi_set(join(keys), values);
}
Result<void> PrefixStore::queue_push(std::string_view key, std::string_view value) {
  return store_->queue_push(join(key), value);
}
Result<std::string> PrefixStore::queue_pop(std::string_view key, Timeout timeout) {
  return store_->queue_pop(join(key), timeout);
}
Result<std::int64_t> PrefixStore::queue_len(std::string_view key) {
  return store_->queue_len(join(key));
}
Result<void> PrefixStore::barrier(std::string_view key, int world_size, Timeout timeout) {
  return store_->barrier(join(key), world_size, timeout);
}

Result<std::vector<std::string>> PrefixStore::list_keys() {
  Result<std::vector<std::string>> all = store_->list_keys();
  if (!all) return all;
  const std::string start = join("");
  std::vector<std::string> own;
  for (const std::string& key : *all) {
    if (key.starts_with(start)) own.push_back(key.substr(start.size()));
  }
  return own;
}

Result<std::unique_ptr<Store>> PrefixStore::clone() {
  Result<std::unique_ptr<Store>> store = store_->clone();
  if (!store) return store;
  return std::unique_ptr<Store>(std::make_unique<PrefixStore>(prefix_, *std::move(store)));
}

}  // namespace ddp
