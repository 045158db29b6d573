#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tests/process/worker_lines.h"

// A worker for tests of output: line_worker COUNT [FIFO] writes COUNT lines to standard output, in
// writes of all sizes, which cut lines anywhere, and one line to standard error. Then, if FIFO is
// given, it opens it for reading and waits until the other end is closed.
int main(int argc, char** argv) {
  const char* variable = std::getenv("RANK");
  const int rank = variable != nullptr ? std::atoi(variable) : 0;
  const std::string text = ddp::test::worker_output(rank, argc > 1 ? std::atoi(argv[1]) : 0);
  std::string_view rest = text;
  for (std::size_t i = 1; !rest.empty(); ++i) {
    const std::size_t size = std::min(rest.size(), 1 + i * i % 6'007);
    const ssize_t written = ::write(STDOUT_FILENO, rest.data(), size);
    if (written <= 0) return 1;
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  const std::string last = fmt::format("rank {} has written {} bytes\n", rank, text.size());
  if (::write(STDERR_FILENO, last.data(), last.size()) < 0) return 1;
  if (argc > 2) {
    // A shell's `read` does what this would take ten lines for.
    ::execlp("sh", "sh", "-c", "read line < \"$0\"; exit 0", argv[2], nullptr);
    return 1;
  }
  return 0;
}
