#pragma once

#include <memory>
#include <string>

#include "common/store/store.h"

namespace ddp {

// Another store's keys under `prefix` + "/". num_keys() counts all keys of the other store, as
// PyTorch's PrefixStore does. Threads as the other store.
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

 private:
  std::string join(std::string_view key) const;
  std::vector<std::string> join(const std::vector<std::string>& keys) const;

  std::string prefix_;
  std::shared_ptr<Store> store_;
};

}  // namespace ddp
