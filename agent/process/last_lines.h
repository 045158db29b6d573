#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::agent {

// The last lines of a stream, each cut to a limit. Reuses its memory, because most lines are soon
// dropped.
template <std::size_t kLines, std::size_t kLineBytes>
class LastLines {
 public:
  void add(std::string_view line) { lines_[count_++ % kLines].assign(line.substr(0, kLineBytes)); }
  void clear() { count_ = 0; }

  // The oldest first.
  std::vector<std::string> lines() const {
    std::vector<std::string> all;
    for (std::size_t i = count_ < kLines ? 0 : count_ - kLines; i < count_; ++i)
      all.push_back(lines_[i % kLines]);
    return all;
  }

 private:
  std::array<std::string, kLines> lines_;
  std::size_t count_ = 0;  // How many were ever added.
};

}  // namespace ddp::agent
