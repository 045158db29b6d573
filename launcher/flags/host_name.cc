#include "launcher/flags/host_name.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

namespace ddp::flags {
namespace {

// RFC 1035.
constexpr std::size_t kMaxName = 253;
constexpr std::size_t kMaxLabel = 63;

// No standard allows underscores, but many names have them.
bool may_be_in_a_label(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_';
}

std::string why_no_label(std::string_view label) {
  if (label.empty()) return "one of its labels is empty";
  if (label.size() > kMaxLabel)
    return fmt::format("'{}' is longer than {} characters", label, kMaxLabel);
  if (label.front() == '-' || label.back() == '-')
    return fmt::format("'{}' begins or ends with '-'", label);
  if (!std::all_of(label.begin(), label.end(), may_be_in_a_label))
    return fmt::format("'{}' has other characters than letters, digits, '-' and '_'", label);
  return "";
}

// Resolvers take such a text for an address, even a short form (127.1).
bool looks_like_ipv4(std::string_view name) {
  return name.find('.') != std::string_view::npos &&
         name.find_first_not_of("0123456789.") == std::string_view::npos;
}

}  // namespace

std::string why_no_host(std::string_view name) {
  // A dot at the end stands for the DNS root and is allowed.
  std::string_view rest = name.ends_with('.') ? name.substr(0, name.size() - 1) : name;
  if (rest.size() > kMaxName) return fmt::format("it is longer than {} characters", kMaxName);
  for (bool more = true; more;) {
    const auto dot = rest.find('.');
    std::string why = why_no_label(rest.substr(0, dot));
    if (!why.empty()) return why;
    more = dot != std::string_view::npos;
    rest.remove_prefix(more ? dot + 1 : rest.size());
  }
  in_addr address;
  if (looks_like_ipv4(name) && ::inet_aton(std::string(name).c_str(), &address) == 0)
    return "it is not an IPv4 address";
  return "";
}

}  // namespace ddp::flags
