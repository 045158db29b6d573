#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "common/store/store.h"

namespace ddp::python {

// PyTorch's store as ours. PyTorch's exceptions become errors. The GIL must not be held, because a
// store that is written in Python takes it.
class StoreAdapter final : public Store {
 public:
  explicit StoreAdapter(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  Result<void> set(std::string_view key, std::string_view value) override;
  Result<std::string> get(std::string_view key, Timeout timeout) override;
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Timeout timeout) override;
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override;
  Result<bool> check(const std::vector<std::string>& keys) override;
  Result<void> wait(const std::vector<std::string>& keys, Timeout timeout) override;
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) override;
  Result<bool> delete_key(std::string_view key) override;
  Result<std::int64_t> num_keys() override;
  // PyTorch 2.6 cannot do it.
  Result<std::vector<std::string>> list_keys() override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace ddp::python
