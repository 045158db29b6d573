#pragma once

#include <string_view>

namespace ddp {

// Unix sockets whose names are in no file system: the kernel frees a name with its last descriptor.
// Any user of the machine may have taken a name. A name beyond 107 bytes is cut. `fd` is a socket
// of AF_UNIX. As the system calls, both return 0, or -1 with errno.
int bind_abstract(int fd, std::string_view name);
int connect_abstract(int fd, std::string_view name);

}  // namespace ddp
