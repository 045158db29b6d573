#include "common/base/shell_words.h"

#include <algorithm>
#include <cctype>

namespace ddp {
namespace {

bool is_plain(char c) {
  constexpr std::string_view kHarmless = "_-./:=@%+,";
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         kHarmless.find(c) != std::string_view::npos;
}

// Inside double quotes, a backslash before any other character stands for itself.
bool escapes_in_double_quotes(char c) { return c == '"' || c == '\\' || c == '$' || c == '`'; }

std::string in_quotes(std::string_view word) {
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

}  // namespace

std::string shell_quote(std::string_view word) {
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return std::string(word);
  return in_quotes(word);
}

std::string shell_quote(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    // As the first word, NAME=x would be an assignment.
    const bool first = line.empty();
    line += (first ? "" : " ") +
            (first && word.find('=') != std::string::npos ? in_quotes(word) : shell_quote(word));
  }
  return line;
}

Result<std::vector<std::string>> split_words(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool more = i + 1 < text.size();
    if (quote == '\'') {
      if (c == quote) {
        quote = 0;
      } else {
        word += c;
      }
    } else if (c == '\\' && more && (quote == 0 || escapes_in_double_quotes(text[i + 1]))) {
      word += text[++i];
      in_word = true;
    } else if (quote == '"') {
      if (c == quote) {
        quote = 0;
      } else {
        word += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      in_word = true;
    } else if (c == ' ' || c == '\t' || c == '\n') {
      if (in_word) words.push_back(std::move(word));
      word.clear();
      in_word = false;
    } else {
      word += c;
      in_word = true;
    }
  }
  if (quote != 0) return make_error(Errc::kInvalidArgument, "a {} is not closed", quote);
  if (in_word) words.push_back(std::move(word));
  return words;
}

}  // namespace ddp
