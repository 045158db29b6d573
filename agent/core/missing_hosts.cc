#include "agent/core/missing_hosts.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

namespace ddp::agent {
namespace {

constexpr std::size_t kNamesMax = 16;

// An address has dots of its own.
std::string_view short_name(std::string_view name) {
  const bool address = name.find_first_not_of("0123456789.") == std::string_view::npos;
  return address ? name : name.substr(0, name.find('.'));
}

}  // namespace

std::string missing_hosts(const std::vector<std::string>& expected, const wire::Waiting& waiting) {
  if (static_cast<int>(waiting.hosts.size()) != waiting.have) return "";
  std::vector<std::string> missing = expected;
  for (const std::string& host : waiting.hosts) {
    const auto found = std::find_if(
        missing.begin(), missing.end(),
        [&host](const std::string& name) { return short_name(name) == short_name(host); });
    if (found == missing.end()) return "";
    missing.erase(found);
  }
  std::string text;
  for (std::size_t i = 0; i < std::min(missing.size(), kNamesMax); ++i)
    text += fmt::format("{}{}", i == 0 ? "; missing: " : ", ", missing[i]);
  if (missing.size() > kNamesMax) text += fmt::format(" and {} more", missing.size() - kNamesMax);
  return text;
}

}  // namespace ddp::agent
