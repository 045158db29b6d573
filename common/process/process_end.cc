#include "common/process/process_end.h"

#include <poll.h>

#include <cerrno>

namespace ddp {

bool has_ended(int pidfd) {
  pollfd end{pidfd, POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&end, 1, 0);
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

}  // namespace ddp
