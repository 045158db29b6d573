#include "worker/transport/engine_kind.h"

#include <filesystem>
#include <system_error>

#include "common/base/errc.h"

namespace ddp {
namespace {

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

}  // namespace ddp
