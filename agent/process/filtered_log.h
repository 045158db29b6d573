#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/process/file_writer.h"
#include "agent/process/line_prefix.h"

namespace ddp::agent {

// The file of a node that gets a copy of each line, from all workers, that contains one of several
// texts (--duplicate-stdout-filters).
class FilteredLog {
 public:
  FilteredLog(WrittenFile file, std::vector<std::string> texts)
      : file_(std::move(file)), texts_(std::move(texts)) {}

  // Writes the prefix and the line if it matches.
  void add(const LinePrefix& prefix, std::string_view line);

 private:
  bool matches(std::string_view line) const;

  WrittenFile file_;
  const std::vector<std::string> texts_;
  std::string scratch_;
};

}  // namespace ddp::agent
