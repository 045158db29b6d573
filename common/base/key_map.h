#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/result.h"

namespace ddp {

struct KeyHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};
// Found by any text, without making a std::string of it.
template <typename T>
using ByKey = std::unordered_map<std::string, T, KeyHash, std::equal_to<>>;

// The values and queues of a key-value store, and what the operations of PyTorch's Store mean for
// them (common/store/store.h). The daemon's store and the file store are built on it. Not thread
// safe. Pointers and views into it are valid until the next change.
class KeyMap {
 public:
  // What compare_set() answers, and whether `desired` must be stored.
  struct Compared {
    std::string_view held;
    bool stores = false;
  };
  struct Popped {
    std::size_t length = 0;  // Of the queue, before; 0: there is no value.
    std::string value;
  };

  // Frees the memory of a large old value.
  void put(std::string_view key, std::string_view value);
  void append(std::string_view key, std::string_view suffix);
  // False if there was no value.
  bool erase(std::string_view key);
  const std::string* find(std::string_view key) const;
  const ByKey<std::string>& values() const { return values_; }

  void push(std::string_view key, std::string_view value);
  Popped pop(std::string_view key);
  std::size_t queue_len(std::string_view key) const;

  // The sum of `delta` and the number at the beginning of the value, as C's strtoll reads it
  // (leading spaces, then digits; the rest is ignored), wrapping at 64 bits. An absent value is 0.
  // kInvalidArgument if there is no number or it does not fit into 64 bits.
  Result<std::int64_t> sum(std::string_view key, std::int64_t delta) const;
  Compared compare(std::string_view key, std::string_view expected, std::string_view desired) const;
  // Whether the key has a value or a queue that is not empty.
  bool has(std::string_view key) const;
  bool has_all(const std::vector<std::string>& keys) const;
  // Those of `keys` that have neither, in quotes.
  std::string missing(const std::vector<std::string>& keys) const;

  // Of all keys that have values, their values and the queues.
  std::size_t num_bytes() const { return bytes_; }

 private:
  ByKey<std::string> values_;
  ByKey<std::deque<std::string>> queues_;  // None is empty.
  std::size_t bytes_ = 0;
};

}  // namespace ddp
