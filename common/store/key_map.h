#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace ddp {

// The meanings of Store's operations over a map, for stores that keep one. Not thread safe.
class KeyMap {
 public:
  void put(std::string_view key, std::string_view value);
  bool erase(std::string_view key);
  const std::string* find(std::string_view key) const;
  std::size_t size() const { return values_.size(); }

  // kInvalidArgument if the present value is no number.
  Result<std::int64_t> sum(std::string_view key, std::int64_t delta) const;
  // What compare_set() answers; `stores` tells whether that value is to be stored.
  std::string compare(std::string_view key, std::string_view expected, std::string_view desired,
                      bool& stores) const;
  bool has_all(const std::vector<std::string>& keys) const;
  // kTimeout naming those of `keys` that are absent.
  Error missing(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) const;

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace ddp
