#pragma once

#include <string>
#include <vector>

#include "launcher/ddp_run/flag_table.h"

// What the scripts for all shells are made of.
namespace ddp::run {

// What can stand for a flag's value; nothing where nobody can guess.
struct FlagValues {
  bool files = false;
  bool folders = false;
  std::vector<std::string> words{};

  std::string joined(char separator) const;
};
FlagValues values_of(const Flag& flag);

// The beginning of a flag's help, short enough for a list.
std::string summary_of(const Flag& flag);

// Dashes inside of names, not those at their beginning, as underscores. `names`: one or several.
std::string with_underscores(std::string names);

}  // namespace ddp::run
