#include <poll.h>

int waits(int fd) {
  struct pollfd event = {fd, POLLIN, 0};
  return poll(&event, 1, 0);
}
