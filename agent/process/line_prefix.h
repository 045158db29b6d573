#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::agent {

// What stands before each line of a worker on the console. Made from a template
// (common/base/template_text.h); names that are not known stay as they are. Pure.
class LinePrefix {
 public:
  using WallTime = std::chrono::system_clock::time_point;

  static constexpr std::string_view kDefault = "[${hostname}:${rank}] ";

  struct Values {
    std::string role_name;
    std::string rank;  // Of several ranks: "0-3,7".
    std::string local_rank;
    std::string host;  // ${hostname}
    std::string node_rank;
  };

  LinePrefix() = default;  // None.
  LinePrefix(std::string_view text, const Values& values);

  bool empty() const { return parts_.size() == 1 && parts_.front().empty(); }
  // ${time} is the local time of day, 2026-11-22 13:05:09.125.
  bool has_time() const { return parts_.size() > 1; }
  // Of a line that continues the one before: with a + behind it, before its last space.
  void append_to(std::string& line, WallTime now, bool continues = false) const;
  // Without the time and spaces behind it, for messages.
  std::string name() const;

 private:
  std::vector<std::string> parts_{""};  // Between any two of them stands the time.
};

}  // namespace ddp::agent
