#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace ddp {

// A key-value store that all ranks see, with the operations and meanings of PyTorch's c10d Store.
// Keys and values are any bytes. Calls block; one object serves one thread at a time.
//
// Failures: kTimeout names the keys that were missing; kPeerLost means that the server is gone and
// the object is of no further use.
class Store {
 public:
  using Timeout = std::chrono::milliseconds;

  virtual ~Store() = default;

  virtual Result<void> set(std::string_view key, std::string_view value) = 0;
  // Waits for the key, then gives its value.
  virtual Result<std::string> get(std::string_view key, Timeout timeout) = 0;
  // Adds to the decimal number kept under the key (0 if absent) and gives the sum.
  virtual Result<std::int64_t> add(std::string_view key, std::int64_t delta) = 0;
  virtual Result<bool> check(const std::vector<std::string>& keys) = 0;
  virtual Result<void> wait(const std::vector<std::string>& keys, Timeout timeout) = 0;
  // Stores `desired` if the key holds `expected` (or is absent and `expected` is empty). Gives the
  // value now held; `expected` if the key is absent and `expected` is not empty.
  virtual Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                          std::string_view desired) = 0;
  virtual Result<bool> delete_key(std::string_view key) = 0;
  virtual Result<std::int64_t> num_keys() = 0;
};

}  // namespace ddp
