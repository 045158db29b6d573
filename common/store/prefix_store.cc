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

}  // namespace ddp
