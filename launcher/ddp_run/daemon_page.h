#pragma once

#include <optional>
#include <string>

#include "common/base/result.h"

namespace ddp::run {

// A page of the rendezvous at this port, which is one line; none: it has no such page. Blocks, for
// a second at most beyond the look-up of the name. kProtocol: another program has the port.
Result<std::optional<std::string>> ask_daemon(const std::string& path, const std::string& host,
                                              int port);

}  // namespace ddp::run
