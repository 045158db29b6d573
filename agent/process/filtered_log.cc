#include "agent/process/filtered_log.h"

#include <algorithm>

namespace ddp::agent {

bool FilteredLog::matches(std::string_view line) const {
  return std::any_of(texts_.begin(), texts_.end(), [line](const std::string& text) {
    return line.find(text) != std::string_view::npos;
  });
}

void FilteredLog::add(const LinePrefix& prefix, std::string_view line) {
  if (!matches(line)) return;
  scratch_.clear();
  prefix.append_to(scratch_, std::chrono::system_clock::now());
  scratch_.append(line).push_back('\n');
  file_.write(scratch_);
}

}  // namespace ddp::agent
