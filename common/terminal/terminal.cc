#include "common/terminal/terminal.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>

namespace ddp::terminal {

bool can_show_status(int fd) {
  const char* type = std::getenv("TERM");
  return ::isatty(fd) == 1 && ::tcgetpgrp(fd) == ::getpgrp() &&
         (type == nullptr || std::string_view(type) != "dumb");
}

std::string_view cut_to_width(int fd, std::string_view line) {
  winsize size{};
  const bool known = ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  const std::size_t columns = known ? size.ws_col : 80;
  return line.substr(0, columns - 1);
}

int rows(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 ? size.ws_row : 24;
}

std::string harmless(std::string text) {
  char before = 0;
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    // U+0080 to U+009F are control characters, too: U+009B begins a command as ESC [ does.
    const bool is_c1 = before == '\xC2' && byte >= 0x80 && byte <= 0x9F;
    before = c;
    if (is_c1) (&c)[-1] = ' ';
    if (is_c1 || byte < 0x20 || byte == 0x7F) c = ' ';
  }
  return text;
}

bool same_stream(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino && !S_ISREG(first.st_mode);
}

}  // namespace ddp::terminal
