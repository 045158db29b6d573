#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/process/line_prefix.h"
#include "common/base/unique_fd.h"

namespace ddp::agent {

// The file of a node that gets a copy of each line, from all workers, that contains one of several
// texts (--duplicate-stdout-filters).
class FilteredLog {
 public:
  FilteredLog(UniqueFd file, std::vector<std::string> texts)
      : file_(std::move(file)), texts_(std::move(texts)) {}

  // Writes the prefix and the line if it matches. Returns false, once, if it cannot be written:
  // errno says why, and the file is closed.
  bool add(const LinePrefix& prefix, std::string_view line);

 private:
  bool matches(std::string_view line) const;

  UniqueFd file_;
  const std::vector<std::string> texts_;
  std::string scratch_;
};

}  // namespace ddp::agent
