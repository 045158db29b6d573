#include "common/base/template_text.h"

#include <algorithm>
#include <cstddef>

namespace ddp {
namespace {

bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_in_name(char c) { return begins_name(c) || (c >= '0' && c <= '9'); }

// The part that begins at a dollar, and how many characters it takes.
std::pair<TemplatePart, std::size_t> part_at_dollar(std::string_view text) {
  const std::pair<TemplatePart, std::size_t> dollar{{text.substr(0, 1), {}}, 1};
  if (text.starts_with("$$")) return {dollar.first, 2};
  const bool braces = text.starts_with("${");
  const std::size_t begin = braces ? 2 : 1;
  std::size_t end = begin;
  if (end < text.size() && begins_name(text[end])) {
    while (end < text.size() && is_in_name(text[end])) ++end;
  }
  if (end == begin || (braces && (end == text.size() || text[end] != '}'))) return dollar;
  const std::size_t size = braces ? end + 1 : end;
  return {{text.substr(0, size), text.substr(begin, end - begin)}, size};
}

}  // namespace

std::vector<TemplatePart> template_parts(std::string_view text) {
  std::vector<TemplatePart> parts;
  while (!text.empty()) {
    const std::size_t plain = std::min(text.find('$'), text.size());
    if (plain > 0) parts.push_back({text.substr(0, plain), {}});
    text.remove_prefix(plain);
    if (text.empty()) break;
    const auto [part, size] = part_at_dollar(text);
    parts.push_back(part);
    text.remove_prefix(size);
  }
  return parts;
}

std::string safe_substitute(std::string_view text, std::string_view name, std::string_view value) {
  std::string result;
  for (const TemplatePart& part : template_parts(text))
    result += !part.name.empty() && part.name == name ? value : part.text;
  return result;
}

}  // namespace ddp
