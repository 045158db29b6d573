#pragma once

#include <optional>
#include <string>

#include "common/base/result.h"

namespace ddp::hosting {

// Gets a page of one line from the rendezvous daemon at this port; nothing if it has no such page.
// Blocks for at most a second, plus the look-up of the name. kProtocol if another program has the
// port.
Result<std::optional<std::string>> ask_daemon(const std::string& path, const std::string& host,
                                              int port);

}  // namespace ddp::hosting
