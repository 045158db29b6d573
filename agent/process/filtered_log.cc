#include "agent/process/filtered_log.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace ddp::agent {

bool FilteredLog::matches(std::string_view line) const {
  return std::any_of(texts_.begin(), texts_.end(), [line](const std::string& text) {
    return line.find(text) != std::string_view::npos;
  });
}

bool FilteredLog::add(const LinePrefix& prefix, std::string_view line) {
  if (!file_ || !matches(line)) return true;
  scratch_.clear();
  prefix.append_to(scratch_, std::chrono::system_clock::now());
  scratch_.append(line).push_back('\n');
  std::string_view rest = scratch_;
  while (!rest.empty()) {
    const ssize_t written = ::write(file_.get(), rest.data(), rest.size());
    if (written >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      const int error = errno;
      file_.reset();
      errno = error;
      return false;
    }
  }
  return true;
}

}  // namespace ddp::agent
