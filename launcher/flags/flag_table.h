#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ddp::flags {

// What an explicit empty value means: --name=, --name "", PET_NAME=.
enum class WhenEmpty {
  kMissing,  // An error: the flag needs a value.
  kDefault,  // The default, as in torchrun: as if the flag were not there.
  kItself,   // A value like any other.
};

// One flag of ddp-run, for --help and for the parser. If torchrun has the flag, the name is
// torchrun's.
struct Flag {
  std::string_view group;
  std::string_view name;         // With dashes; underscores are accepted too.
  char letter;                   // Of the short form, 0 if there is none.
  std::string_view placeholder;  // Of the value; empty for a flag without one.
  std::string_view help;
  std::string_view example;  // Empty if it would add nothing.
  // True if torchrun does not have the flag. If a shortened name fits this flag and one of
  // torchrun's, it means torchrun's.
  bool own = false;
  // Every occurrence counts, not only the last one.
  bool adds_up = false;

  bool takes_value() const { return !placeholder.empty(); }
  WhenEmpty when_empty() const;
  // The flag does not start a job, so it counts only on a command line, not in PET_NAME.
  bool of_line_only() const {
    return name == "help" || name == "version" || name == "print-completion";
  }
};

// All flags. Flags of a group are adjacent.
std::span<const Flag> all_flags();

// The flag of this name (with dashes); null if there is none.
const Flag* find_flag(std::string_view name);

// Text of --help.
std::string help_text();

// The flag name that is most similar to `name` (without leading dashes); empty if none is similar.
std::string_view nearest_flag(std::string_view name);

// The flag that people mean who know other launchers' words; empty if it is none of these.
std::string_view flag_of_other_launchers(std::string_view name);

}  // namespace ddp::flags
