#include <string_view>

#include <fmt/format.h>

#include "launcher/completion/completion.h"
#include "launcher/completion/completion_parts.h"

namespace ddp::completion {
namespace {

// Turns underscores in names into dashes, because _arguments knows only those. $words is zsh's own
// copy of the line, so the line itself stays as it is.
constexpr std::string_view kBegin = R"script(#compdef ddp-run
# Completes ddp-run's command line in zsh; made by ddp-run --print-completion zsh.
_ddp_run() {
  local curcontext=$curcontext state line i name
  typeset -A opt_args
  for ((i = 2; i <= CURRENT; i++)); do
    name=${words[i]%%=*}
    [[ $name != --*_* || ( $i == $CURRENT && ${words[i]} != *=* ) ]] ||
      words[i]=${name//_/-}${words[i]#$name}
  done
  _arguments -S -M 'm:_=- r:|[-]=* r:|=*' : \
)script";

constexpr std::string_view kEnd = R"script(    '(-)1:program:_ddp_run_program' \
    '*::argument:_files'
}
_ddp_run_program() {
  _alternative 'commands:command:_command_names -e' 'files:file:_files'
}
# Found by its name in fpath, or read by source.
if [[ $funcstack[1] == _ddp-run ]]; then
  _ddp_run "$@"
else
  compdef _ddp_run ddp-run
fi
)script";

// Escapes text for a part of a specification within single quotes, which ends at a colon or
// bracket.
std::string quoted(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
      continue;
    }
    if (c == ':' || c == '[' || c == ']' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string action(const flags::Flag& flag) {
  const FlagValues values = values_of(flag);
  if (values.files) return "_files";
  if (values.folders) return "_files -/";
  if (values.hosts) return "_sequence _hosts";
  if (values.devices) return "{_sequence compadd - ${$(print -r -- /dev/nvidia<->(N\\:t))#nvidia}}";
  return values.words.empty() ? " " : fmt::format("({})", values.joined(' '));
}

// `others`: the spellings that are no longer offered once this one is on the line.
std::string specification(const flags::Flag& flag, const std::string& others,
                          const std::string& option) {
  std::string text =
      fmt::format("{}{}[{}]", flag.adds_up ? "*" : others, option, quoted(summary_of(flag)));
  if (flag.takes_value()) text += fmt::format(":{}:{}", quoted(flag.placeholder), action(flag));
  return fmt::format("    '{}' \\\n", text);
}

}  // namespace

std::string zsh_completion() {
  std::string script(kBegin);
  for (const flags::Flag& flag : flags::all_flags()) {
    const std::string_view sign = flag.takes_value() ? "=" : "";
    const std::string name = fmt::format("--{}", flag.name);
    if (flag.letter == 0) {
      script += specification(flag, "", fmt::format("{}{}", name, sign));
      continue;
    }
    const std::string both = fmt::format("(-{} {})", flag.letter, name);
    script += specification(flag, both, fmt::format("{}{}", name, sign));
    script +=
        specification(flag, both, fmt::format("-{}{}", flag.letter, flag.takes_value() ? "+" : ""));
  }
  return script + std::string(kEnd);
}

}  // namespace ddp::completion
