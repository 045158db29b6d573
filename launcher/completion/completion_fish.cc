#include <string_view>

#include <fmt/format.h>

#include "launcher/completion/completion.h"
#include "launcher/completion/completion_parts.h"

namespace ddp::completion {
namespace {

// Flags are offered only before the program. Names with underscores are offered once one is typed.
constexpr std::string_view kFunctions = R"script(
function __ddp_run_has_program
    set -l value no
    for token in (commandline -opc)[2..]
        if test $value = yes
            set value no
        else if string match -qr -- '^-.' $token
            contains -- (string replace -ra '(?<=[^-])_' - -- $token) $__ddp_run_valued; and set value yes
        else
            return 0
        end
    end
    return 1
end
function __ddp_run_flags
    not __ddp_run_has_program
end
function __ddp_run_underscored
    not __ddp_run_has_program; and string match -q -- '--*_*' (commandline -opc) (commandline -ct)
end
complete -c ddp-run -n __ddp_run_flags -F -a '(__fish_complete_command)'
complete -c ddp-run -n __ddp_run_has_program -F
)script";

// Within single quotes.
std::string quoted(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string arguments(const flags::Flag& flag) {
  if (!flag.takes_value()) return "";
  const FlagValues values = values_of(flag);
  if (values.files) return " -r -F";
  if (values.folders) return " -x -a '(__fish_complete_directories)'";
  if (values.hosts) return " -x -a '(__fish_complete_list , __fish_print_hostnames)'";
  if (values.devices) {
    return " -x -a '(__fish_complete_list , \"string match -rg \\\\^nvidia\\(\\\\d+\\)\\$ (command "
           "ls /dev)\")'";
  }
  return values.words.empty() ? " -x" : fmt::format(" -x -a '{}'", values.joined(' '));
}

std::string line(const flags::Flag& flag, std::string_view condition, const std::string& name) {
  const std::string letter = flag.letter != 0 ? fmt::format(" -s {}", flag.letter) : "";
  return fmt::format("complete -c ddp-run -n {}{} -l {}{} -d '{}'\n", condition, letter, name,
                     arguments(flag), quoted(summary_of(flag)));
}

}  // namespace

std::string fish_completion() {
  std::string valued;
  std::string lines;
  for (const flags::Flag& flag : flags::all_flags()) {
    const std::string name(flag.name);
    const std::string underscored = with_underscores(name);
    lines += line(flag, "__ddp_run_flags", name);
    if (underscored != name) lines += line(flag, "__ddp_run_underscored", underscored);
    if (!flag.takes_value()) continue;
    valued += " --" + name;
    if (flag.letter != 0) valued += fmt::format(" -{}", flag.letter);
  }
  return fmt::format(
             "# Completes ddp-run's command line in fish; made by ddp-run --print-completion "
             "fish.\nset -g __ddp_run_valued{}",
             valued) +
         std::string(kFunctions) + lines;
}

}  // namespace ddp::completion
