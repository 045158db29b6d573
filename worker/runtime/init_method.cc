#include "worker/runtime/init_method.h"

#include <algorithm>
#include <utility>

#include "common/base/parse_number.h"

namespace ddp::runtime {
namespace {

constexpr int kLargestWorld = 1 << 20;

template <typename... Args>
Error wrong(std::string_view url, fmt::format_string<Args...> format, Args&&... args) {
  return make_error(Errc::kInvalidArgument, "init_method {}: {}", url,
                    fmt::format(format, std::forward<Args>(args)...));
}

Result<void> parse_query(std::string_view url, std::string_view query, InitMethod& method) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    const std::string_view name = pair.substr(0, pair.find('='));
    const std::string_view value = pair.substr(std::min(name.size() + 1, pair.size()));
    if (name != "rank" && name != "world_size") {
      return wrong(url, "'{}' is not rank=R or world_size=N", pair);
    }
    const bool is_rank = name == "rank";
    const auto number = parse_whole_number(value, is_rank ? 0 : 1, kLargestWorld);
    if (!number) {
      return wrong(url, "{}={}: expected a number from {} to {}", name, value, is_rank ? 0 : 1,
                   kLargestWorld);
    }
    (is_rank ? method.rank : method.world_size) = number;
  }
  return {};
}

}  // namespace

Result<InitMethod> parse_init_method(std::string_view url) {
  InitMethod method;
  const std::string_view place = url.substr(0, url.find('?'));
  const std::string_view query = url.substr(std::min(place.size() + 1, url.size()));
  if (Result<void> right = parse_query(url, query, method); !right) return right.error();
  if (place == "env://") return method;
  if (place.starts_with("tcp://")) {
    method.kind = InitMethod::Kind::kTcp;
    std::string_view address = place.substr(6);
    if (address.ends_with('/')) address.remove_suffix(1);
    Result<HostPort> endpoint = parse_host_port(address, 1, std::nullopt);
    if (!endpoint) {
      return wrong(url,
                   "{}; write tcp://HOST:PORT, for example tcp://node0:29400 or "
                   "tcp://[fd00::1]:29400",
                   endpoint.error().message);
    }
    method.endpoint = *std::move(endpoint);
    return method;
  }
  if (place.starts_with("file://")) {
    method.kind = InitMethod::Kind::kFile;
    method.path = place.substr(7);
    if (!method.path.starts_with('/') || method.path.ends_with('/')) {
      return wrong(url, "expected file:// and the absolute path of a file: file:///shared/job7");
    }
    return method;
  }
  return wrong(url, "expected env://, tcp://HOST:PORT or file:///PATH");
}

}  // namespace ddp::runtime
