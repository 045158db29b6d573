#pragma once

#include <memory>
#include <string>

#include "common/store/store.h"

namespace ddp {

// Another store's keys under `prefix` + "/". num_keys() counts all keys of the other store, as
// PyTorch's PrefixStore does; list_keys() gives those under the prefix, without it. Thread safe if
// the other store is.
class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> store);

  Result<void> set(std::string_view key, std::string_view value) override;
  Result<std::string> get(std::string_view key, Timeout timeout) override;
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override;
  Result<bool> check(const std::vector<std::string>& keys) override;
  Result<void> wait(const std::vector<std::string>& keys, Timeout timeout) override;
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) override;
  Result<bool> delete_key(std::string_view key) override;
  Result<std::int64_t> num_keys() override;
  Result<std::vector<std::string>> list_keys() override;
  Result<void> append(std::string_view key, std::string_view value) override;
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Timeout timeout) override;
  Result<void> multi_set(const std::vector<std::string>& keys,
                         const std::vector<std::string>& values) override;
  Result<void> queue_push(std::string_view key, std::string_view value) override;
  Result<std::string> queue_pop(std::string_view key, Timeout timeout) override;
  Result<std::int64_t> queue_len(std::string_view key) override;
  Result<void> barrier(std::string_view key, int world_size, Timeout timeout) override;
  // Clones the other store, too.
  Result<std::unique_ptr<Store>> clone() override;

 private:
  std::string join(std::string_view key) const;
  std::vector<std::string> join(const std::vector<std::string>& keys) const;

  std::string prefix_;
  std::shared_ptr<Store> store_;
};

}  // namespace ddp
