#pragma once

#include <memory>

#include "common/base/result.h"
#include "worker/transport/connection.h"
#include "worker/transport/data_stream.h"
#include "worker/transport/engine_kind.h"

namespace ddp::transport {

// Makes the streams of one rank's links. The streams of one engine share what it has opened, so
// only one thread at a time may use any of them.
class DataEngine {
 public:
  virtual ~DataEngine() = default;
  virtual EngineKind kind() const = 0;
  // A stream to the rank at the other end of a fresh connection. The peer has to call establish()
  // on its stream as well.
  virtual std::unique_ptr<DataStream> open_stream(Connection connection) = 0;
};

// kNotFound: the message says how to install what is missing.
Result<std::unique_ptr<DataEngine>> make_data_engine(EngineKind kind);

}  // namespace ddp::transport
