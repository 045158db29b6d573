#include "launcher/ddp_run/completion.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "launcher/ddp_run/flag_table.h"

namespace ddp::run {
namespace {

// bash takes --flag=value for three words. What stands between "case" and "esac" are the values of
// each flag.
constexpr std::string_view kBegin =
    R"script(# Completes ddp-run's command line in bash; made by ddp-run --completion bash.
_ddp_run() {
  local cur=${COMP_WORDS[COMP_CWORD]} flag='' word i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ -n $flag ]]; then
      [[ $word == = ]] || flag=''
    elif [[ $word == -?* ]]; then
      [[ " $_ddp_run_valued " != *" ${word//_/-} "* ]] || flag=${word//_/-}
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

// What can stand for the value, as arguments of compgen; empty where nobody can guess.
std::string choices(std::string_view placeholder) {
  if (placeholder == "FILE") return "-f";
  if (placeholder == "DIR") return "-d";
  std::string words;
  while (!placeholder.empty()) {
    const std::string_view word = placeholder.substr(0, placeholder.find('|'));
    placeholder.remove_prefix(std::min(placeholder.size(), word.size() + 1));
    // Capitals stand for something else.
    if (word.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") != std::string_view::npos)
      continue;
    if (!words.empty()) words += ' ';
    words += word;
  }
  return words.empty() ? "" : fmt::format("-W '{}'", words);
}

std::string spellings(const Flag& flag) {
  return flag.letter != 0 ? fmt::format("-{}|--{}", flag.letter, flag.name)
                          : fmt::format("--{}", flag.name);
}

}  // namespace

std::string bash_completion() {
  std::string names;
  std::string valued;
  std::string values;
  for (const Flag& flag : all_flags()) {
    std::string both = spellings(flag);
    std::replace(both.begin(), both.end(), '|', ' ');
    names += " " + both;
    if (!flag.takes_value()) continue;
    valued += " " + both;
    const std::string arguments = choices(flag.placeholder);
    if (arguments.empty()) continue;
    values += fmt::format("    {}) mapfile -t COMPREPLY < <(compgen {} -- \"$cur\") ;;\n",
                          spellings(flag), arguments);
  }
  std::string underscored = names;
  for (std::size_t i = 1; i < underscored.size(); ++i) {
    // The dashes inside a name, not those at its beginning.
    if (underscored[i] == '-' && underscored[i - 1] != '-' && underscored[i - 1] != ' ')
      underscored[i] = '_';
  }
  std::string script(kBegin);
  script += values;
  script += kEnd;
  return fmt::format("{}_ddp_run_names='{}'\n_ddp_run_underscored='{}'\n_ddp_run_valued='{}'\n",
                     script, names.substr(1), underscored.substr(1), valued.substr(1));
}

}  // namespace ddp::run
