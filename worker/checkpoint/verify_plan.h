#pragma once

#include <vector>

#include "common/base/ids.h"
#include "worker/checkpoint/manifest.h"

namespace ddp::checkpoint {

// Which files a rank verifies, in the manifest's order, when a world of `world_size` loads the
// checkpoint. Each file belongs to one rank. A file with only one rank's own tensors belongs to
// that rank, which reads it anyway. The others, and those of ranks that no longer exist, are dealt
// by size. Depends only on the arguments, so all ranks together verify every file.
std::vector<const FileRecord*> files_to_verify(const Manifest& manifest, Rank rank, int world_size);

}  // namespace ddp::checkpoint
