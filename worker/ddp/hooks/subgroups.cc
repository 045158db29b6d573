#include "worker/ddp/hooks/subgroups.h"

#include <charconv>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>

namespace ddp {

std::shared_ptr<ProcessGroup> new_subgroups(ProcessGroup& group, int group_size) {
  if (group_size < 1 || group.size() % group_size != 0) {
    throw std::invalid_argument(
        fmt::format("{} ranks cannot be divided into groups of {}", group.size(), group_size));
  }
  return group.split(group.rank() / group_size);
}

std::shared_ptr<ProcessGroup> new_node_subgroups(ProcessGroup& group) {
  const char* const variable = std::getenv("GROUP_RANK");
  const std::string_view text = variable == nullptr ? "0" : variable;
  int node = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), node);
  if (error != std::errc() || end != text.data() + text.size() || node < 0) {
    throw std::invalid_argument(
        fmt::format("GROUP_RANK is \"{}\", not the number of a node", text));
  }
  return group.split(node);
}

}  // namespace ddp
