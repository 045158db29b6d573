#include "worker/transport/data_engine.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "common/base/errc.h"
#include "worker/transport/socket_stream.h"
#if DDP_WITH_UCX
#include "worker/transport/ucx_engine.h"
#endif

namespace ddp {
namespace {

class SocketEngine : public DataEngine {
 public:
  EngineKind kind() const override { return EngineKind::kTcp; }
  std::unique_ptr<DataStream> open_stream(UniqueFd connection) override {
    return std::make_unique<SocketStream>(std::move(connection));
  }
};

bool has_fast_network() {
#if DDP_WITH_UCX
  std::error_code ignored;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", ignored);
  return devices != std::filesystem::directory_iterator();
#else
  return false;
#endif
}

}  // namespace

const char* name_of(EngineKind kind) { return kind == EngineKind::kUcx ? "ucx" : "tcp"; }

Result<EngineKind> engine_of(const std::optional<std::string>& ddp_link) {
  if (!ddp_link || ddp_link->empty() || *ddp_link == "tcp") return EngineKind::kTcp;
  if (*ddp_link == "ucx") return EngineKind::kUcx;
  if (*ddp_link == "auto") return has_fast_network() ? EngineKind::kUcx : EngineKind::kTcp;
  return make_error(Errc::kInvalidArgument, "DDP_LINK={}: expected tcp, ucx or auto", *ddp_link);
}

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

}  // namespace ddp
