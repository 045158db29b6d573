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

// The head of an HTTP answer, up to and including the empty line. kProtocol if it is none.
Result<std::string> read_http_head(store::Socket& socket, TimePoint deadline);
// The value of a field of the head; `name` in lower case; empty if it is not there.
std::string http_field(std::string_view head, std::string_view name);

// Likewise, a page of one line from the daemon at this port. Blocks for at most a second, plus the
// look-up of the name.
Result<std::optional<std::string>> ask_daemon(std::string_view path, const std::string& host,
                                              int port);

}  // namespace ddp::hosting
