#include "worker/ddp/hooks/subgroups.h"

#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>

#include "common/base/parse_number.h"

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
  const auto node = parse_whole_number<int>(text, 0);
  if (!node) {
    throw std::invalid_argument(
        fmt::format("GROUP_RANK is \"{}\", not the number of a node", text));
  }
  return group.split(*node);
}

}  // namespace ddp
