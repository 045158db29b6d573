#include "common/base/host_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cctype>

#include "common/base/parse_number.h"

namespace ddp {
namespace {

template <typename... Args>
Error wrong(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(Errc::kInvalidArgument, format, std::forward<Args>(args)...);
}

bool is_ipv6(const std::string& text) {
  in6_addr address;
  return ::inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

// RFC 1035.
constexpr std::size_t kMaxName = 253;
constexpr std::size_t kMaxLabel = 63;

bool looks_like_ipv6(std::string_view text) {
  return std::count(text.begin(), text.end(), ':') > 1 &&
         text.find_first_not_of("0123456789abcdefABCDEF:.") == std::string_view::npos;
}

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

// Why this text cannot be a host name, for example "a label is longer than 63 characters". Empty if
// it can be one. IPv6 addresses are not names.
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

}  // namespace

bool is_loopback(const std::string& address) {
  in_addr numeric;
  return address == "::1" ||
         (address.starts_with("127.") && ::inet_pton(AF_INET, address.c_str(), &numeric) == 1);
}

std::string host_and_port(const std::string& host, int port) {
  if (host.find(':') != std::string::npos) return fmt::format("[{}]:{}", host, port);
  return fmt::format("{}:{}", host, port);
}

Result<HostPort> parse_host_port(std::string_view text, int least_port,
                                 std::optional<int> default_port) {
  HostPort place{std::string(text), default_port.value_or(0)};
  if (text.starts_with('[')) {
    const auto close = text.find(']');
    if (close == std::string_view::npos) return wrong("the bracket is not closed");
    place.host = text.substr(1, close - 1);
    text.remove_prefix(close + 1);
    if (!is_ipv6(place.host)) return wrong("'{}' is not an IPv6 address", place.host);
  } else if (is_ipv6(place.host)) {
    text = {};
  } else if (looks_like_ipv6(text)) {
    return wrong("an IPv6 address with a port needs brackets");
  } else {
    const auto colon = text.find(':');
    place.host = text.substr(0, colon);
    text.remove_prefix(std::min(colon, text.size()));
    if (place.host.empty()) return wrong("the host is missing");
    const std::string why = why_no_host(place.host);
    if (!why.empty()) return wrong("'{}' is not a host name: {}", place.host, why);
  }
  if (text.empty()) {
    if (!default_port) return wrong("the port is missing");
    return place;
  }
  const std::optional<int> port =
      text.front() == ':' ? parse_whole_number(text.substr(1), least_port, 65'535) : std::nullopt;
  if (!port) return wrong("the port is not a number from {} to 65535", least_port);
  place.port = *port;
  return place;
}

}  // namespace ddp
