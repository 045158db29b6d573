#include "common/store/store_endpoint.h"

#include <algorithm>

#include "common/base/parse_number.h"

namespace ddp::store {
namespace {

template <typename... Args>
Error bad_endpoint(std::string_view text, fmt::format_string<Args...> format, Args&&... args) {
  return make_error(Errc::kInvalidArgument,
                    "'{}': {}; write HOST:PORT, for example node0:29400 or [fd00::1]:29400", text,
                    fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace

Result<StoreEndpoint> parse_store_endpoint(std::string_view text, std::optional<int> default_port) {
  StoreEndpoint endpoint;
  std::string_view rest;
  if (text.starts_with('[')) {
    const auto close = text.find(']');
    if (close == std::string_view::npos) return bad_endpoint(text, "the bracket is not closed");
    endpoint.host = text.substr(1, close - 1);
    rest = text.substr(close + 1);
  } else {
    const auto colon = std::min(text.find(':'), text.size());
    endpoint.host = text.substr(0, colon);
    rest = text.substr(colon);
    if (rest.find(':', 1) != std::string_view::npos) {
      return bad_endpoint(text, "an IPv6 address needs brackets");
    }
  }
  if (endpoint.host.empty()) return bad_endpoint(text, "the host is missing");
  if (rest.empty()) {
    if (!default_port) return bad_endpoint(text, "the port is missing");
    endpoint.port = *default_port;
    return endpoint;
  }
  const auto port =
      rest.starts_with(':') ? parse_whole_number(rest.substr(1), 1, 65'535) : std::optional<int>();
  if (!port) return bad_endpoint(text, "the port is not a number from 1 to 65535");
  endpoint.port = *port;
  return endpoint;
}

}  // namespace ddp::store
