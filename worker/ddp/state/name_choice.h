#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "worker/checkpoint/name_pattern.h"

namespace ddp {

// Which tensors of modules a load takes, by patterns over NAME/PARAMETER. No patterns: all. Also
// finds a pattern that covers nothing, which is probably a typing error.
class NameChoice {
 public:
  // `patterns` outlives the object.
  explicit NameChoice(const std::vector<std::string>& patterns)
      : patterns_(patterns), is_idle_(patterns.size(), true) {}

  bool covers(std::string_view name) {
    bool covered = patterns_.empty();
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      if (!checkpoint::matches_pattern(patterns_[i], name)) continue;
      is_idle_[i] = false;
      covered = true;
    }
    return covered;
  }

  // The first pattern that covered none of the names so far; empty if there is none.
  std::string idle() const {
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      if (is_idle_[i]) return patterns_[i];
    }
    return {};
  }

 private:
  const std::vector<std::string>& patterns_;
  std::vector<bool> is_idle_;
};

}  // namespace ddp
