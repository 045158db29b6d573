#include "launcher/ddp_run/terminal.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace ddp::run {

bool can_show_status(int fd) {
  const char* type = std::getenv("TERM");
  return ::isatty(fd) == 1 && ::tcgetpgrp(fd) == ::getpgrp() &&
         (type == nullptr || std::string_view(type) != "dumb");
}

}  // namespace ddp::run
