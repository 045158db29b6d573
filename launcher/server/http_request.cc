#include "launcher/server/http_request.h"

#include <algorithm>
#include <cctype>

namespace ddp::server {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kAuthorization = "authorization:";

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
      out += text[i];
      continue;
    }
    out += static_cast<char>(16 * digit_of(text[i + 1]) + digit_of(text[i + 2]));
    i += 2;
  }
  return out;
}

}  // namespace

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
    std::string_view header = take_until(head, kLineEnd);
    if (!begins_with_name(header, kAuthorization)) continue;
    header.remove_prefix(kAuthorization.size());
    while (header.starts_with(' ')) header.remove_prefix(1);
    request.authorization = header;
  }
  return request;
}

}  // namespace ddp::server
