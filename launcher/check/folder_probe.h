#pragma once

#include <string>

#include "common/base/clock.h"
#include "launcher/check/verdict/facts.h"

namespace ddp::check {

// Looks at the disk below a folder, which must exist: how much is free, and how fast a file of
// 64 MiB is written and forced to the disk (at most 2 s are spent on writing). Nothing is left
// there. Another process does it, because a disk or a server that hangs would hang this one, too;
// after `limit` that process is given up. Only while there is one thread.
inline constexpr Duration kFolderLimit{15'000};
FolderFacts probe_folder(const std::string& path, Duration limit = kFolderLimit);

}  // namespace ddp::check
