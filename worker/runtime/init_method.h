#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/base/host_port.h"
#include "common/base/result.h"

namespace ddp::runtime {

// An init_method of PyTorch: env://, tcp://HOST:PORT or file:///PATH, each optionally with
// ?rank=R&world_size=N.
struct InitMethod {
  enum class Kind { kEnvironment, kTcp, kFile };
  Kind kind = Kind::kEnvironment;
  HostPort endpoint;  // kTcp.
  std::string path;   // kFile; absolute.
  std::optional<int> rank;
  std::optional<int> world_size;
};

// kInvalidArgument: the message says what is wrong and what is expected.
Result<InitMethod> parse_init_method(std::string_view url);

}  // namespace ddp::runtime
