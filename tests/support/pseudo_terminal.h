#pragma once

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include <pty.h>
#include <termios.h>

#include "common/base/unique_fd.h"

namespace ddp::test {

// A terminal without a screen: what a program writes to fd() arrives unchanged.
class PseudoTerminal {
 public:
  explicit PseudoTerminal(int columns) {
    int terminal = -1;
    int screen = -1;
    winsize size{};
    size.ws_col = static_cast<unsigned short>(columns);
    size.ws_row = 10;
    if (::openpty(&screen, &terminal, nullptr, nullptr, &size) != 0)
      throw std::runtime_error("cannot open a pseudo terminal");
    screen_.reset(screen);
    terminal_.reset(terminal);
    termios mode{};
    ::tcgetattr(terminal, &mode);
    mode.c_oflag &= ~static_cast<tcflag_t>(OPOST);
    ::tcsetattr(terminal, TCSANOW, &mode);
    ::fcntl(screen, F_SETFL, O_NONBLOCK);
  }

  int fd() const { return terminal_.get(); }
  // What was written to it since the last call.
  std::string sent() {
    std::string all;
    char buffer[4'096];
    for (ssize_t size; (size = ::read(screen_.get(), buffer, sizeof(buffer))) > 0;)
      all.append(buffer, static_cast<std::size_t>(size));
    return all;
  }

 private:
  UniqueFd screen_;
  UniqueFd terminal_;
};

}  // namespace ddp::test
