#pragma once

#include <vector>

#include "common/base/ids.h"
#include "worker/checkpoint/manifest.h"

namespace ddp::checkpoint {

// Which files a rank verifies when a world of `world_size` loads the checkpoint: each file is one
// rank's. Those with nothing but a rank's own tensors are that rank's, which reads them anyway; the
// others, and those of ranks that are no longer there, are dealt by size. Depends on nothing but
// the arguments, so all ranks together verify every file. In the manifest's order.
std::vector<const FileRecord*> files_to_verify(const Manifest& manifest, Rank rank, int world_size);

}  // namespace ddp::checkpoint
