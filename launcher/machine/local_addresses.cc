#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <net/if.h>

#include "common/base/host_name.h"
#include "common/base/host_port.h"
#include "common/base/unique_fd.h"
#include "launcher/machine/machine.h"

namespace ddp::machine {
namespace {

struct FreeAddrInfo {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
struct FreeIfAddrs {
  void operator()(ifaddrs* list) const { ::freeifaddrs(list); }
};

// Empty for families other than IPv4 and IPv6.
std::string to_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address != nullptr && address->sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
                sizeof(text));
  } else if (address != nullptr && address->sa_family == AF_INET6) {
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
                sizeof(text));
  }
  return text;
}

bool is_link_local(const std::string& numeric) { return numeric.starts_with("fe80:"); }

std::vector<std::string> resolve(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  std::vector<std::string> addresses;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &list) != 0) return addresses;
  const std::unique_ptr<addrinfo, FreeAddrInfo> owner(list);
  for (; list != nullptr; list = list->ai_next) addresses.push_back(to_text(list->ai_addr));
  return addresses;
}

// Addresses of the interfaces that are up, IPv4 first.
std::vector<std::string> interface_addresses() {
  ifaddrs* list = nullptr;
  std::vector<std::string> addresses;
  if (::getifaddrs(&list) != 0) return addresses;
  const std::unique_ptr<ifaddrs, FreeIfAddrs> owner(list);
  for (; list != nullptr; list = list->ifa_next) {
    if ((list->ifa_flags & IFF_UP) == 0) continue;
    if (std::string text = to_text(list->ifa_addr); !text.empty())
      addresses.push_back(std::move(text));
  }
  std::stable_partition(addresses.begin(), addresses.end(), [](const std::string& text) {
    return text.find(':') == std::string::npos;
  });
  return addresses;
}

bool contains(const std::vector<std::string>& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

}  // namespace

bool is_own_name(const std::string& host, const std::string& own) {
  if (host == own) return true;
  const auto short_own = own.substr(0, own.find('.'));
  const auto short_host = host.substr(0, host.find('.'));
  return short_own == short_host && (own == short_own || host == short_host);
}

std::string full_name() {
  const std::string name = ddp::host_name();
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_CANONNAME;
  addrinfo* list = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0) return name;
  const std::unique_ptr<addrinfo, FreeAddrInfo> owner(list);
  return list->ai_canonname == nullptr ? name : list->ai_canonname;
}

HostPlace locate_host(const std::string& host) {
  if (host == "localhost") return HostPlace{true, true, "127.0.0.1"};
  const std::vector<std::string> numeric = resolve(host, AI_NUMERICHOST);
  if (!numeric.empty() && is_loopback(numeric.front()))
    return HostPlace{true, true, numeric.front()};

  const std::vector<std::string> own = interface_addresses();
  if (!numeric.empty()) return HostPlace{contains(own, numeric.front()), false, numeric.front()};

  HostPlace place{is_own_name(host, ddp::host_name()), false, ""};
  for (const std::string& address : resolve(host, 0)) {
    if (!is_loopback(address) && !contains(own, address)) continue;
    place.local = true;
    if (!is_loopback(address) && place.address.empty()) place.address = address;
  }
  if (!place.local) {
    place.address = host;
    return place;
  }
  // /etc/hosts often gives a machine's own name a loopback address, at which no other node finds
  // it.
  for (const std::string& address : own) {
    if (place.address.empty() && !is_loopback(address) && !is_link_local(address))
      place.address = address;
  }
  if (place.address.empty()) place.address = "127.0.0.1";
  return place;
}

std::string source_address(const std::string& host) {
  constexpr const char* kAnyPort = "9";  // connect() on a datagram socket sends nothing.
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(host.c_str(), kAnyPort, &hints, &list) != 0) return "";
  const std::unique_ptr<addrinfo, FreeAddrInfo> owner(list);
  for (; list != nullptr; list = list->ai_next) {
    const UniqueFd socket(::socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t size = sizeof(own);
    auto* generic = reinterpret_cast<sockaddr*>(&own);
    if (::connect(socket.get(), list->ai_addr, list->ai_addrlen) == 0 &&
        ::getsockname(socket.get(), generic, &size) == 0) {
      return to_text(generic);
    }
  }
  return "";
}

}  // namespace ddp::machine
