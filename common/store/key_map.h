#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace ddp {

// The meanings of Store's operations over maps, for stores that keep them. Not thread safe.
class KeyMap {
 public:
  void put(std::string_view key, std::string_view value);
  void append(std::string_view key, std::string_view suffix);
  bool erase(std::string_view key);
  const std::string* find(std::string_view key) const;
  std::size_t size() const { return values_.size(); }
  std::vector<std::string> list() const;
  // All keys must be there.
  std::vector<std::string> values_of(const std::vector<std::string>& keys) const;

  void push(std::string_view key, std::string_view value);
  // Empty if the queue is empty.
  std::optional<std::string> pop(std::string_view key);
  const std::string* front(std::string_view key) const;
  std::int64_t queue_len(std::string_view key) const;

  // kInvalidArgument if the present value is not a number.
  Result<std::int64_t> sum(std::string_view key, std::int64_t delta) const;
  // What compare_set() returns. Sets `stores` if that value must be stored.
  std::string compare(std::string_view key, std::string_view expected, std::string_view desired,
                      bool& stores) const;
  // Whether the key has a value or a queue that is not empty.
  bool has(std::string_view key) const;
  bool has_all(const std::vector<std::string>& keys) const;
  bool has_all_values(const std::vector<std::string>& keys) const;
  // Those of `keys` that have no value (and, with `or_queue`, no queue either), in quotes.
  std::string missing(const std::vector<std::string>& keys, bool or_queue) const;

 private:
  std::map<std::string, std::string, std::less<>> values_;
  std::map<std::string, std::deque<std::string>, std::less<>> queues_;  // None is empty.
};

}  // namespace ddp
