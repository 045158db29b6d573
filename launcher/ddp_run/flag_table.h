#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ddp::run {

// What an empty value means that is written out: --name=, --name "", PET_NAME=.
enum class WhenEmpty {
  kMissing,  // Nothing; a value is needed.
  kDefault,  // The default, as in torchrun: as if the flag were not there.
  kItself,   // It is a value like others.
};

// One flag of ddp-run, as --help shows it and as the parser knows it. Names are torchrun's where it
// has the flag.
struct Flag {
  std::string_view group;
  std::string_view name;         // With dashes; underscores are accepted too.
  char letter;                   // Of the short form, 0 if there is none.
  std::string_view placeholder;  // Of the value; empty for a flag without one.
  std::string_view help;
  std::string_view example;  // Empty where it would say nothing new.
  // Not torchrun's: where a shortened name fits one of torchrun's flags, it means that one.
  bool own = false;
  // Each occurrence counts, not the last one alone; in a --config file, each element of a list.
  bool adds_up = false;

  bool takes_value() const { return !placeholder.empty(); }
  WhenEmpty when_empty() const;
  // It asks for something else than a job, so that only a command line can mean it.
  bool of_line_only() const {
    return name == "help" || name == "version" || name == "print-completion";
  }
};

// All flags, those of a group together.
std::span<const Flag> all_flags();

// The flag of this name (with dashes); null if there is none.
const Flag* find_flag(std::string_view name);

// Text of --help.
std::string help_text();

// The flag whose name is most like `name` (without dashes), empty if none is near.
std::string_view nearest_flag(std::string_view name);

}  // namespace ddp::run
