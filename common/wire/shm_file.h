#pragma once

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/wire/shm_layout.h"

namespace ddp::wire {

// Makes the file behind the memory that a node's workers share in a round (shm_layout.h). It has no
// name, it is sealed against changes of its size, and its header is written. kIo with the size and
// errno's text.
Result<UniqueFd> make_shm_file(int local_size, Round round, const LinkKey& link_key = {});

}  // namespace ddp::wire
