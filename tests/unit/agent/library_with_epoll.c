#include <sys/epoll.h>

int waits(int fd) {
  struct epoll_event event;
  return epoll_wait(fd, &event, 1, 0);
}
