#include "worker/transport/data_engine.h"

#include <utility>

#include "common/base/errc.h"
#include "worker/transport/socket_stream.h"
#if DDP_WITH_UCX
#include "worker/transport/ucx_engine.h"
#endif

namespace ddp::transport {
namespace {

class SocketEngine : public DataEngine {
 public:
  EngineKind kind() const override { return EngineKind::kTcp; }
  std::unique_ptr<DataStream> open_stream(Connection connection) override {
    return std::make_unique<SocketStream>(std::move(connection));
  }
};

}  // namespace

Result<std::unique_ptr<DataEngine>> make_data_engine(EngineKind kind) {
  if (kind == EngineKind::kTcp) return std::unique_ptr<DataEngine>(new SocketEngine);
#if DDP_WITH_UCX
  return make_ucx_engine();
#else
  return make_error(Errc::kNotFound,
                    "DDP_LINK asks for UCX, which this build does not have: install libucx-dev and "
                    "build again with -DDDP_WITH_UCX=ON, or set DDP_LINK=tcp on all nodes");
#endif
}

}  // namespace ddp::transport
