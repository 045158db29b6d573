#pragma once

#include <memory>

#include "common/base/result.h"
#include "worker/transport/data_engine.h"

namespace ddp::transport {

// Opens UCX and a worker for one rank's links. kNotFound if UCX is not installed.
Result<std::unique_ptr<DataEngine>> make_ucx_engine();

}  // namespace ddp::transport
