#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/store/socket.h"

namespace ddp::hosting {

// Gets a page of the rendezvous daemon at the other end of `socket`; nothing if it has no such
// page. kProtocol if what answers is not a rendezvous. `name`: HOST:PORT.
Result<std::optional<std::string>> get_page(store::Socket& socket, std::string_view path,
                                            std::string_view name, TimePoint deadline);

// Likewise, a page of one line from the daemon at this port. Blocks for at most a second, plus the
// look-up of the name.
Result<std::optional<std::string>> ask_daemon(std::string_view path, const std::string& host,
                                              int port);

}  // namespace ddp::hosting
