#pragma once

#include <string>
#include <vector>

#include "launcher/flags/flag_table.h"

// Parts that the completion scripts of all shells share.
namespace ddp::completion {

// The possible values of a flag; all members are empty if they are not known.
struct FlagValues {
  bool files = false;
  bool folders = false;
  bool hosts = false;    // Names of machines; several are separated by commas.
  bool devices = false;  // CUDA devices of this machine, by number; likewise.
  std::vector<std::string> words{};

  std::string joined(char separator) const;
};
FlagValues values_of(const flags::Flag& flag);

// The beginning of a flag's help, short enough for a list.
std::string summary_of(const flags::Flag& flag);

// Replaces the dashes inside names by underscores, but not those in front. `names` holds one or
// more names.
std::string with_underscores(std::string names);

}  // namespace ddp::completion
