#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/host_port.h"
#include "common/base/result.h"
#include "common/config/tls_files.h"

namespace ddp::flags {

// The etcd cluster that elects a job's coordinator (--rdzv-backend etcd).
struct EtcdSettings {
  std::vector<HostPort> endpoints;
  std::string protocol = "http";
  config::TlsFiles tls{};            // Each may be missing.
  std::string prefix = "/ddp-run/";  // Of all keys.

  friend bool operator==(const EtcdSettings&, const EtcdSettings&) = default;
};

// HOST[:PORT],HOST[:PORT],...; the default port is 2379. Errors are exit_error; their message does
// not name the flag.
Result<std::vector<HostPort>> parse_etcd_endpoints(std::string_view text);

// Takes a key of --rdzv-conf if it is about etcd; false if it is not. Errors as above.
Result<bool> take_etcd_key(std::string_view key, const std::string& value, EtcdSettings& settings);

// "http://10.0.0.1:2379", one for each endpoint.
std::vector<std::string> etcd_urls(const EtcdSettings& settings);

}  // namespace ddp::flags
