#include "launcher/completion/completion.h"

#include <algorithm>
#include <string_view>

#include "launcher/completion/completion_parts.h"

namespace ddp::completion {
namespace {

constexpr std::size_t kSummaryMax = 60;

}  // namespace

std::string FlagValues::joined(char separator) const {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += separator;
    text += word;
  }
  return text;
}

FlagValues values_of(const flags::Flag& flag) {
  FlagValues values;
  std::string_view rest = flag.placeholder;
  values.files = rest == "FILE";
  values.folders = rest == "DIR";
  values.hosts = rest.starts_with("HOST[:");
  values.devices = flag.name == "devices";
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find('|'));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    // Words in capitals are placeholders, and 0-3 stands for the numbers in it.
    const bool literal =
        word.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string_view::npos;
    if (literal && word != "0-3") values.words.emplace_back(word);
  }
  if (flag.placeholder.starts_with("0-3")) values.words = {"0", "1", "2", "3"};
  return values;
}

std::string summary_of(const flags::Flag& flag) {
  std::string_view text = flag.help;
  for (const std::string_view end : {";", ":", ". ", " ("}) text = text.substr(0, text.find(end));
  if (text.size() > kSummaryMax) text = text.substr(0, text.rfind(' ', kSummaryMax));
  while (text.ends_with(',')) text.remove_suffix(1);
  return std::string(text);
}

std::string with_underscores(std::string names) {
  for (std::size_t i = 1; i < names.size(); ++i) {
    if (names[i] == '-' && names[i - 1] != '-' && names[i - 1] != ' ') names[i] = '_';
  }
  return names;
}

std::string completion_script(const std::string& shell) {
  if (shell == "zsh") return zsh_completion();
  if (shell == "tcsh") return tcsh_completion();
  if (shell == "fish") return fish_completion();
  return bash_completion();
}

}  // namespace ddp::completion
