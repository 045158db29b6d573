#pragma once

#include <string>
#include <vector>

#include "common/base/template_text.h"

namespace ddp::agent {

// argv of one worker. As under torchrun, $local_rank and ${local_rank} are replaced in all words
// but the first, and $$ becomes one dollar. Other names stay as they are. Pure.
inline std::vector<std::string> command_of(const std::vector<std::string>& command,
                                           int local_rank) {
  const std::string value = std::to_string(local_rank);
  std::vector<std::string> words;
  for (const std::string& word : command)
    words.push_back(words.empty() ? word : safe_substitute(word, "local_rank", value));
  return words;
}

}  // namespace ddp::agent
