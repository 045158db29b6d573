#include "agent/process/line_prefix.h"

#include <ctime>
#include <iterator>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "common/base/template_text.h"

namespace ddp::agent {
namespace {

const std::string* value_of(std::string_view name, const LinePrefix::Values& values) {
  if (name == "role_name") return &values.role_name;
  if (name == "rank") return &values.rank;
  if (name == "local_rank") return &values.local_rank;
  if (name == "hostname") return &values.host;
  if (name == "node_rank") return &values.node_rank;
  return nullptr;
}

void append_time(std::string& line, LinePrefix::WallTime now) {
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  const auto seconds = static_cast<std::time_t>(ms / 1'000);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  fmt::format_to(std::back_inserter(line), "{:%Y-%m-%d %H:%M:%S}.{:03}", parts, ms % 1'000);
}

}  // namespace

LinePrefix::LinePrefix(std::string_view text, const Values& values) {
  for (const TemplatePart& part : template_parts(text)) {
    if (part.name == "time") {
      parts_.emplace_back();
      continue;
    }
    const std::string* value = value_of(part.name, values);
    parts_.back() += value != nullptr ? std::string_view(*value) : part.text;
  }
}

void LinePrefix::append_to(std::string& line, WallTime now, bool continues) const {
  const std::size_t begin = line.size();
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (i > 0) append_time(line, now);
    line += parts_[i];
  }
  if (!continues || line.size() == begin) return;
  line.insert(line.back() == ' ' ? line.size() - 1 : line.size(), 1, '+');
}

std::string LinePrefix::name() const {
  std::string text;
  for (const std::string& part : parts_) text += part;
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

}  // namespace ddp::agent
