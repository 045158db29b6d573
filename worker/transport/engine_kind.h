#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/result.h"

namespace ddp {

// What carries data between nodes. The numbers are part of the links' handshake.
enum class EngineKind : std::uint32_t {
  kTcp = 0,  // The connection itself.
  kUcx = 1,  // UCX, over InfiniBand, RoCE or whatever it finds.
};

// As in DDP_LINK: "tcp", "ucx".
const char* name_of(EngineKind kind);

// The engine for a value of DDP_LINK. "auto" means "ucx" if this build has UCX and the machine has
// an InfiniBand or RoCE device, and otherwise "tcp". Nothing or "" means "tcp". kInvalidArgument
// for any other value.
Result<EngineKind> engine_of(const std::optional<std::string>& ddp_link);

}  // namespace ddp
