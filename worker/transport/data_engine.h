#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "worker/transport/data_stream.h"

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

// Makes the streams of one rank's links. The streams of one engine share what it has opened, so
// only one thread at a time may use any of them.
class DataEngine {
 public:
  virtual ~DataEngine() = default;
  virtual EngineKind kind() const = 0;
  // A stream to the rank at the other end of a fresh connection. The peer has to call establish()
  // on its stream as well.
  virtual std::unique_ptr<DataStream> open_stream(UniqueFd connection) = 0;
};

// kNotFound: the message says how to install what is missing.
Result<std::unique_ptr<DataEngine>> make_data_engine(EngineKind kind);

}  // namespace ddp
