#include "common/base/release.h"

namespace ddp {

std::string_view release() { return DDP_VERSION; }

}  // namespace ddp
