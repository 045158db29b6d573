#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "launcher/completion/completion.h"
#include "launcher/completion/completion_parts.h"

namespace ddp::completion {
namespace {

// bash splits words at = and :, so that --flag=value is three, and so is host:port. The values of
// each flag go between "case" and "esac".
constexpr std::string_view kBegin =
    R"script(# Completes ddp-run's command line in bash; made by ddp-run --print-completion bash.
_ddp_run() {
  local cur=${COMP_WORDS[COMP_CWORD]} flag='' word i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ -n $flag ]]; then
      [[ $word == = ]] || flag=''
    elif [[ $word == -?* ]]; then
      [[ " $_ddp_run_valued " != *" ${word//_/-} "* ]] || flag=${word//_/-}
    elif [[ $word == [:=]* ]]; then
      ((++i < COMP_CWORD)) || return
    else
      compopt -o default 2>/dev/null
      return
    fi
  done
  [[ $cur != = ]] || cur=''
  case $flag in
)script";

constexpr std::string_view kEnd = R"script(    ?*) ;;
    *)
      local names=$_ddp_run_names
      [[ $cur != --*_* ]] || names=$_ddp_run_underscored
      if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$names" -- "$cur")
      else
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -c -- "$cur"; compgen -f -- "$cur")
      fi
      ;;
  esac
}
complete -F _ddp_run ddp-run
)script";

// The command that fills COMPREPLY with the flag's possible values; empty if they are not known.
std::string action(const flags::Flag& flag) {
  const FlagValues values = values_of(flag);
  const auto fill = [](std::string_view arguments) {
    return fmt::format("mapfile -t COMPREPLY < <(compgen {} -- \"$cur\")", arguments);
  };
  // The last one of several.
  const auto fill_last = [](std::string_view arguments) {
    return fmt::format(
        "mapfile -t COMPREPLY < <(compgen -P \"${{cur%\"${{cur##*,}}\"}}\" {} -- \"${{cur##*,}}\")",
        arguments);
  };
  constexpr std::string_view kNames = "compopt -o filenames 2>/dev/null; ";
  if (values.files) return std::string(kNames) + fill("-f");
  if (values.folders) return std::string(kNames) + fill("-d");
  if (values.hosts) return fill_last("-A hostname");
  if (values.devices) {
    return "local nodes=(/dev/nvidia[0-9]*); " +
           fill_last("-W \"$(printf '%s\\n' \"${nodes[@]##*/nvidia}\" | grep '^[0-9]*$')\"");
  }
  return values.words.empty() ? "" : fill(fmt::format("-W '{}'", values.joined(' ')));
}

std::string spellings(const flags::Flag& flag) {
  return flag.letter != 0 ? fmt::format("-{}|--{}", flag.letter, flag.name)
                          : fmt::format("--{}", flag.name);
}

}  // namespace

std::string bash_completion() {
  std::string names;
  std::string valued;
  std::string values;
  for (const flags::Flag& flag : flags::all_flags()) {
    std::string both = spellings(flag);
    std::replace(both.begin(), both.end(), '|', ' ');
    names += " " + both;
    if (!flag.takes_value()) continue;
    valued += " " + both;
    const std::string fill = action(flag);
    if (!fill.empty()) values += fmt::format("    {}) {} ;;\n", spellings(flag), fill);
  }
  const std::string underscored = with_underscores(names);
  std::string script(kBegin);
  script += values;
  script += kEnd;
  return fmt::format("{}_ddp_run_names='{}'\n_ddp_run_underscored='{}'\n_ddp_run_valued='{}'\n",
                     script, names.substr(1), underscored.substr(1), valued.substr(1));
}

}  // namespace ddp::completion
