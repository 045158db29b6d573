#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/unique_fd.h"

namespace ddp {

// Bytes of a stream with descriptors beside them (SCM_RIGHTS of unix(7)), over a Unix socket.
// Neither call waits or raises SIGPIPE; both return what sendmsg and recvmsg do, with errno.

inline constexpr std::size_t kMaxPassedDescriptors = 8;  // With one call.

// The descriptors travel with the first byte: they were sent if any byte was. The caller still owns
// its own.
ssize_t send_with_descriptors(int socket, std::string_view bytes,
                              std::span<const UniqueFd> descriptors);

// Appends the descriptors that came with the bytes to `received`, with FD_CLOEXEC. If some could
// not be received, because this process has too many open, none is kept: nobody could tell which is
// missing.
ssize_t receive_with_descriptors(int socket, std::span<char> buffer,
                                 std::vector<UniqueFd>& received);

}  // namespace ddp
