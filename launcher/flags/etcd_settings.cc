#include "launcher/flags/etcd_settings.h"

#include <algorithm>

#include "common/base/exit_error.h"
#include "common/base/host_port.h"
#include "launcher/flags/flag_values.h"
#include "launcher/flags/flags.h"

namespace ddp::flags {
namespace {

constexpr int kDefaultPort = 2379;

}  // namespace

Result<std::vector<HostPort>> parse_etcd_endpoints(std::string_view text) {
  std::vector<HostPort> endpoints;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    if (one.empty()) continue;
    auto endpoint = parse_endpoint(one, kDefaultPort);
    if (!endpoint) return endpoint.error();
    if (endpoint->port == 0) {
      return exit_error(kExitInvalidValue, "'{}' has port 0; etcd's client port is usually {}", one,
                        kDefaultPort);
    }
    endpoints.push_back(std::move(*endpoint));
  }
  if (endpoints.empty()) {
    return exit_error(kExitInvalidValue,
                      "no endpoint is named; write for example etcd0:2379,etcd1:2379");
  }
  return endpoints;
}

Result<bool> take_etcd_key(std::string_view key, const std::string& value, EtcdSettings& settings) {
  if (key == "protocol") {
    if (value != "http" && value != "https") {
      return exit_error(kExitInvalidValue, "protocol={} is neither http nor https", value);
    }
    settings.protocol = value;
  } else if (key == "etcd_prefix") {
    if (!value.starts_with('/')) {
      return exit_error(kExitInvalidValue, "etcd_prefix={} does not begin with /", value);
    }
    settings.prefix = value;
  } else if (key == "cacert" || key == "ca_cert") {
    settings.tls.ca = value;
  } else if (key == "cert" || key == "ssl_cert") {
    settings.tls.certificate = value;
  } else if (key == "key" || key == "ssl_cert_key") {
    settings.tls.key = value;
  } else {
    return false;
  }
  return true;
}

std::vector<std::string> etcd_urls(const EtcdSettings& settings) {
  std::vector<std::string> urls;
  for (const HostPort& endpoint : settings.endpoints) {
    urls.push_back(
        fmt::format("{}://{}", settings.protocol, host_and_port(endpoint.host, endpoint.port)));
  }
  return urls;
}

}  // namespace ddp::flags
