#pragma once

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"

namespace ddp::wire {

// The file behind the memory that a node's workers share in a round (shm_layout.h): without a name,
// sealed against changes of its size, with its header. kIo with the size and errno's text.
Result<UniqueFd> make_shm_file(int local_size, Round round);

}  // namespace ddp::wire
