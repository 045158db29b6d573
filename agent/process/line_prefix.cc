#include "agent/process/line_prefix.h"

#include <algorithm>
#include <ctime>
#include <iterator>

#include <fmt/chrono.h>
#include <fmt/format.h>

namespace ddp::agent {
namespace {

bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_in_name(char c) { return begins_name(c) || (c >= '0' && c <= '9'); }

// What stands at a $: its length, and the name if it is one. A length of 1 is a $ that means
// itself.
struct Mark {
  std::size_t size = 1;
  std::string_view name;
};

Mark mark_at(std::string_view text) {
  if (text.starts_with("$$")) return {2, {}};
  const bool braces = text.starts_with("${");
  const std::size_t begin = braces ? 2 : 1;
  std::size_t end = begin;
  if (end < text.size() && begins_name(text[end])) {
    while (end < text.size() && is_in_name(text[end])) ++end;
  }
  if (end == begin || (braces && (end == text.size() || text[end] != '}'))) return {};
  return {braces ? end + 1 : end, text.substr(begin, end - begin)};
}

const std::string* value_of(std::string_view name, const LinePrefix::Values& values) {
  if (name == "role_name") return &values.role_name;
  if (name == "rank") return &values.rank;
  if (name == "local_rank") return &values.local_rank;
  if (name == "host") return &values.host;
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
  while (!text.empty()) {
    const std::size_t plain = std::min(text.find('$'), text.size());
    parts_.back() += text.substr(0, plain);
    text.remove_prefix(plain);
    if (text.empty()) break;
    const Mark mark = mark_at(text);
    if (mark.name == "time") {
      parts_.emplace_back();
    } else if (const std::string* value = value_of(mark.name, values); value != nullptr) {
      parts_.back() += *value;
    } else {
      // $$ is one $, and what is not known stays.
      parts_.back() += mark.name.empty() ? std::string_view("$") : text.substr(0, mark.size);
    }
    text.remove_prefix(mark.size);
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
