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

// The descriptors travel with the first byte. They stay the caller's, and have left if anything
// has.
ssize_t send_with_descriptors(int socket, std::string_view bytes,
                              std::span<const UniqueFd> descriptors);

// What came with the bytes is put behind `received`, with FD_CLOEXEC. Where some could not be
// taken, for this process has too many, none is: nobody could tell which is which.
ssize_t receive_with_descriptors(int socket, std::span<char> buffer,
                                 std::vector<UniqueFd>& received);

}  // namespace ddp
