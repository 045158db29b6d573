#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::agent {

// The prefix of each line of a worker on the console. Made from a template
// (common/base/template_text.h), in which unknown names stay as they are. Pure.
class LinePrefix {
 public:
  using WallTime = std::chrono::system_clock::time_point;

  static constexpr std::string_view kDefault = "[${hostname}:${rank}] ";

  struct Values {
    std::string role_name;
    std::string rank;
    std::string local_rank;
    std::string host;  // ${hostname}
    std::string node_rank;
  };

  LinePrefix() = default;  // An empty prefix.
  LinePrefix(std::string_view text, const Values& values);

  bool empty() const { return parts_.size() == 1 && parts_.front().empty(); }
  // ${time} is the local time of day, 2026-11-22 13:05:09.125.
  bool has_time() const { return parts_.size() > 1; }
  // Appends the prefix. `continues`: the line continues the one before; the prefix then gets a +
  // before its last space.
  void append_to(std::string& line, WallTime now, bool continues = false) const;
  // The prefix without the time and without trailing spaces, for messages.
  std::string name() const;

 private:
  std::vector<std::string> parts_{""};  // The time stands between any two parts.
};

}  // namespace ddp::agent
