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

// The halves of get_page(). The first returns the head of the answer, up to and including the empty
// line. `authorization`: the value of that header; may be empty.
Result<std::string> send_get(store::Socket& socket, std::string_view target, std::string_view name,
                             std::string_view authorization, TimePoint deadline);
Result<std::string> read_body(store::Socket& socket, std::string_view head, TimePoint deadline);
// The value of a field of the head; `name` in lower case; empty if it is not there.
std::string http_field(std::string_view head, std::string_view name);
// The number in the first line of the head.
int http_status(std::string_view head);

// Likewise, a page of one line from the daemon at this port. Blocks for at most a second, plus the
// look-up of the name.
Result<std::optional<std::string>> ask_daemon(std::string_view path, const std::string& host,
                                              int port);

}  // namespace ddp::hosting
