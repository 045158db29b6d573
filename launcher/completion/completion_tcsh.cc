#include <set>
#include <string>

#include <fmt/format.h>

#include "launcher/completion/completion.h"
#include "launcher/completion/completion_parts.h"

namespace ddp::completion {
namespace {

// The flag's possible values in the syntax of tcsh's complete; empty if they are not known.
std::string action(const flags::Flag& flag) {
  const FlagValues values = values_of(flag);
  if (values.files) return "f";
  if (values.folders) return "d";
  return values.words.empty() ? "" : fmt::format("({})", values.joined(' '));
}

}  // namespace

// tcsh uses the first rule that matches: the value of the flag before, the value after =, a flag, a
// file.
std::string tcsh_completion() {
  std::string before;
  std::string joined;
  std::string names;
  for (const flags::Flag& flag : flags::all_flags()) {
    names += fmt::format("{}{}", names.empty() ? "" : " ", flag.name);
    const std::string values = action(flag);
    if (values.empty()) continue;
    const std::string dashes = fmt::format("--{}", flag.name);
    for (const std::string& name : std::set{dashes, with_underscores(dashes)}) {
      before += fmt::format("  'n/{}/{}/' \\\n", name, values);
      joined += fmt::format("  'c/{}=/{}/' \\\n", name, values);
    }
    if (flag.letter != 0) before += fmt::format("  'n/-{}/{}/' \\\n", flag.letter, values);
  }
  return "# Completes ddp-run's command line in tcsh; made by ddp-run --print-completion tcsh.\n"
         "complete ddp-run \\\n" +
         before + joined + fmt::format("  'c/--/({})/' \\\n  'p/*/f/'\n", names);
}

}  // namespace ddp::completion
