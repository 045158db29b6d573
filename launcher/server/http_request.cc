#include "launcher/server/http_request.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "common/base/host_port.h"

namespace ddp::server {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kAuthorization = "authorization:";
constexpr std::string_view kHost = "host:";

std::string_view take_until(std::string_view& text, std::string_view end) {
  const std::size_t at = std::min(text.find(end), text.size());
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(std::min(at + end.size(), text.size()));
  return part;
}

// The names of headers are the same in small and large letters.
bool begins_with_name(std::string_view line, std::string_view name) {
  return line.size() >= name.size() &&
         std::equal(name.begin(), name.end(), line.begin(), [](char a, char b) {
           return a == std::tolower(static_cast<unsigned char>(b));
         });
}

int digit_of(char c) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto at = kDigits.find(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

std::string decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escapes = text[i] == '%' && i + 2 < text.size() && digit_of(text[i + 1]) >= 0 &&
                         digit_of(text[i + 2]) >= 0;
    if (!escapes) {
      out += text[i] == '+' ? ' ' : text[i];
      continue;
    }
    out += static_cast<char>(16 * digit_of(text[i + 1]) + digit_of(text[i + 2]));
    i += 2;
  }
  return out;
}

}  // namespace

bool HttpRequest::names_this_machine() const {
  std::string_view name = host;
  if (name.starts_with('[')) {
    name.remove_prefix(1);
    name = name.substr(0, name.find(']'));
  } else {
    name = name.substr(0, name.find(':'));
  }
  return name.empty() || name == "localhost" || is_loopback(std::string(name));
}

std::optional<std::string> HttpRequest::value_of(std::string_view name) const {
  std::string_view rest = query;
  while (!rest.empty()) {
    std::string_view pair = take_until(rest, "&");
    if (take_until(pair, "=") == name) return decoded(pair);
  }
  return std::nullopt;
}

std::optional<HttpRequest> parse_http_request(std::string_view head) {
  std::string_view line = take_until(head, kLineEnd);
  HttpRequest request;
  request.method = take_until(line, " ");
  request.target = take_until(line, " ");
  if (!line.starts_with("HTTP/1.") || request.target.empty()) return std::nullopt;
  std::string_view target = request.target;
  request.path = take_until(target, "?");
  request.query = target;
  while (!head.empty()) {
    const std::string_view header = take_until(head, kLineEnd);
    for (const auto& [name, value] :
         {std::pair(kAuthorization, &request.authorization), std::pair(kHost, &request.host)}) {
      if (!begins_with_name(header, name)) continue;
      std::string_view rest = header.substr(name.size());
      while (rest.starts_with(' ')) rest.remove_prefix(1);
      *value = rest;
    }
  }
  return request;
}

}  // namespace ddp::server
