#include "launcher/check/name_service.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include <fmt/format.h>

#include "common/base/clock.h"

namespace ddp::check {
namespace {

struct FreeAddrInfo {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

}  // namespace

Lookup look_up(const std::string& host) {
  const TimePoint begin = Clock::now();
  Lookup found;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  const std::unique_ptr<addrinfo, FreeAddrInfo> owner(list);
  found.ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  if (code != 0) {
    found.error = fmt::format("{} has no address: {}", host, ::gai_strerror(code));
    return found;
  }
  for (; list != nullptr; list = list->ai_next) {
    char text[NI_MAXHOST];
    if (::getnameinfo(list->ai_addr, list->ai_addrlen, text, sizeof(text), nullptr, 0,
                      NI_NUMERICHOST) != 0) {
      continue;
    }
    auto& addresses = found.addresses;
    if (std::find(addresses.begin(), addresses.end(), text) == addresses.end())
      addresses.emplace_back(text);
  }
  return found;
}

std::string name_of_address(const std::string& address) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* list = nullptr;
  if (::getaddrinfo(address.c_str(), nullptr, &hints, &list) != 0) return "";
  const std::unique_ptr<addrinfo, FreeAddrInfo> owner(list);
  char name[NI_MAXHOST];
  const int code =
      ::getnameinfo(list->ai_addr, list->ai_addrlen, name, sizeof(name), nullptr, 0, NI_NAMEREQD);
  return code == 0 ? name : "";
}

}  // namespace ddp::check
