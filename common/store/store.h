#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace ddp {

// A key-value store that all ranks see, with the names and meanings of PyTorch's c10d Store. Keys
// and values are any bytes. Calls block. One object serves one thread at a time; make another one
// for another thread. Objects keep no timeout (PyTorch's set_timeout): each call that waits takes
// one. Once an operation has changed something and returned, the next operation of every client
// sees it.
//
// Failures:
//   kTimeout          names what was missing; the object stays usable
//   kAborted          libddp gave up the wait, since its round is over; the object stays usable
//   kInvalidArgument  the call is wrong, or this kind of store or server lacks the operation
//   kPeerLost         the server is gone, or (of a TCP store) went away in the middle of an
//   operation
//                     that must not be done twice; the message says which
class Store {
 public:
  using Timeout = std::chrono::milliseconds;
  static constexpr Timeout kDoNotWait{0};

  virtual ~Store() = default;

  virtual Result<void> set(std::string_view key, std::string_view value) = 0;
  // Waits for the key, then gives its value.
  virtual Result<std::string> get(std::string_view key, Timeout timeout) = 0;
  // Waits for all the keys, then gives their values, in their order. Nobody may delete one of them
  // meanwhile. For values that are small together: a server closes the connection instead of
  // sending a huge answer (ddp-rendezvous beyond 256 MiB).
  virtual Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                                     Timeout timeout) = 0;
  // Adds to the decimal number kept under the key (0 if absent) and gives the sum.
  virtual Result<std::int64_t> add(std::string_view key, std::int64_t delta) = 0;
  virtual Result<bool> check(const std::vector<std::string>& keys) = 0;
  virtual Result<void> wait(const std::vector<std::string>& keys, Timeout timeout) = 0;
  // Stores `desired` if the key holds `expected` (or is absent and `expected` is empty). Gives the
  // value now held; `expected` if the key is absent and `expected` is not empty.
  virtual Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                          std::string_view desired) = 0;
  // False if there was none.
  virtual Result<bool> delete_key(std::string_view key) = 0;
  virtual Result<std::int64_t> num_keys() = 0;
  // In any order.
  virtual Result<std::vector<std::string>> list_keys() = 0;
};

}  // namespace ddp
