#include "worker/transport/endpoint.h"

#include <algorithm>
#include <random>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/parse_number.h"

namespace ddp::transport {

std::string Endpoint::text() const {
  return fmt::format("{};{};{}", fmt::join(addresses, ","), port, token);
}

Result<Endpoint> parse_endpoint(const std::string& text) {
  const std::size_t first = text.find(';');
  const std::size_t second = first == std::string::npos ? first : text.find(';', first + 1);
  std::optional<int> port;
  std::optional<std::uint64_t> token;
  if (second != std::string::npos) {
    port = parse_whole_number<int>(std::string_view(text).substr(first + 1, second - first - 1));
    token = parse_whole_number<std::uint64_t>(std::string_view(text).substr(second + 1));
  }
  if (!port || !token)
    return make_error(Errc::kProtocol, "'{}' is not the endpoint of a worker", text.substr(0, 200));
  Endpoint endpoint;
  endpoint.port = *port;
  endpoint.token = *token;
  for (std::size_t begin = 0; begin < first;) {
    const std::size_t end = std::min(text.find(',', begin), first);
    endpoint.addresses.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return endpoint;
}

std::uint64_t random_token() {
  std::random_device random;
  return (static_cast<std::uint64_t>(random()) << 32) | random();
}

}  // namespace ddp::transport
