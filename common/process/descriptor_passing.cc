#include "common/process/descriptor_passing.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace ddp {

ssize_t send_with_descriptors(int socket, std::string_view bytes,
                              std::span<const UniqueFd> descriptors) {
  DDP_CHECK(descriptors.size() <= kMaxPassedDescriptors, "{} descriptors at once",
            descriptors.size());
  iovec data{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char space[CMSG_SPACE(kMaxPassedDescriptors * sizeof(int))] = {};
  if (!descriptors.empty()) {
    message.msg_control = space;
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* item = CMSG_FIRSTHDR(&message);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    for (std::size_t i = 0; i < descriptors.size(); ++i) {
      const int fd = descriptors[i].get();
      std::memcpy(CMSG_DATA(item) + i * sizeof(int), &fd, sizeof(fd));
    }
  }
  return ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

ssize_t receive_with_descriptors(int socket, std::span<char> buffer,
                                 std::vector<UniqueFd>& received) {
  iovec data{buffer.data(), buffer.size()};
  alignas(cmsghdr) char space[CMSG_SPACE(kMaxPassedDescriptors * sizeof(int))];
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof(space);
  const ssize_t count = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count < 0) return count;
  std::vector<UniqueFd> came;
  for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr;
       item = CMSG_NXTHDR(&message, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= item->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(item) + at, sizeof(fd));
      came.emplace_back(fd);
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) return count;
  for (UniqueFd& fd : came) received.push_back(std::move(fd));
  return count;
}

}  // namespace ddp
