#pragma once

#include <functional>
#include <string>

#include "common/base/result.h"
#include "worker/checkpoint/file_system.h"

namespace ddp::checkpoint {

// Makes a file atomically: `fill` creates it under the temporary name that it gets and makes it
// durable; then it is renamed. kExists if `path` exists. A failure leaves nothing behind.
Result<void> make_file(FileSystem& files, const std::string& path,
                       const std::function<Result<void>(const std::string& temporary)>& fill);

}  // namespace ddp::checkpoint
