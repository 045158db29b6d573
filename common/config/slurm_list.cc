#include "common/config/slurm_list.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

namespace ddp::config {
namespace {

// The longest name that a resolver takes.
constexpr std::size_t kMaxNameLength = 253;
constexpr std::size_t kMaxDigits = 18;
constexpr int kMaxTasks = 65'536;

struct Range {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::size_t width = 0;
};

// A name: text[0] group[0] text[1] group[1] ... text[n].
struct Pattern {
  std::vector<std::string> texts;
  std::vector<std::vector<Range>> groups;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool in_names(char c) {
  return c > ' ' && c < 0x7f && c != ',' && c != '[' && c != ']' && c != '(' && c != ')';
}

class ListReader {
 public:
  explicit ListReader(std::string_view text) : text_(text) {}

  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  bool take(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  template <typename... Args>
  Error error(fmt::format_string<Args...> format, Args&&... args) const {
    return make_error(Errc::kInvalidArgument, "character {}: {}", at_ + 1,
                      fmt::format(format, std::forward<Args>(args)...));
  }

  Result<std::string_view> digits() {
    const std::size_t begin = at_;
    while (!at_end() && is_digit(text_[at_])) ++at_;
    if (at_ == begin) return error("a number is missing");
    if (at_ - begin > kMaxDigits) return error("a number has more than {} digits", kMaxDigits);
    return text_.substr(begin, at_ - begin);
  }

  Result<Range> range() {
    const auto first = digits();
    if (!first) return first.error();
    Range range{number(*first), number(*first), first->size()};
    if (!take('-')) return range;
    const auto last = digits();
    if (!last) return last.error();
    range.last = number(*last);
    if (range.last < range.first) return error("the range {}-{} goes backwards", *first, *last);
    return range;
  }

  Result<std::vector<Range>> group() {
    std::vector<Range> ranges;
    do {
      auto next = range();
      if (!next) return next.error();
      ranges.push_back(*next);
    } while (take(','));
    if (!take(']')) return error("expected a number, a comma, - or ]");
    return ranges;
  }

  Result<Pattern> name() {
    Pattern pattern;
    std::size_t length = 0;
    std::string text;
    for (;;) {
      if (!at_end() && in_names(text_[at_])) {
        text += text_[at_++];
        ++length;
      } else if (take('[')) {
        auto ranges = group();
        if (!ranges) return ranges.error();
        std::size_t widest = 0;
        for (const Range& range : *ranges)
          widest = std::max({widest, range.width, fmt::formatted_size("{}", range.last)});
        length += widest;
        pattern.texts.push_back(std::exchange(text, {}));
        pattern.groups.push_back(std::move(*ranges));
      } else {
        break;
      }
      if (length > kMaxNameLength)
        return error("a name has more than {} characters", kMaxNameLength);
    }
    if (!at_end() && peek() != ',')
      return error("'{}' is not allowed in a host name", printable(peek()));
    if (length == 0) return error("a name is missing");
    pattern.texts.push_back(std::move(text));
    return pattern;
  }

  // N or N(xM): the count, and how often.
  Result<std::pair<int, std::uint64_t>> repeated_count() {
    const auto count = digits();
    if (!count) return count.error();
    if (number(*count) > kMaxTasks) return error("more than {} tasks on a node", kMaxTasks);
    std::uint64_t times = 1;
    if (take('(')) {
      if (!take('x')) return error("expected x and a number, as in 4(x3)");
      const auto repeat = digits();
      if (!repeat) return repeat.error();
      if (!take(')')) return error("expected )");
      times = number(*repeat);
    }
    if (!at_end() && peek() != ',') return error("expected a comma");
    return std::pair(static_cast<int>(number(*count)), times);
  }

 private:
  static std::uint64_t number(std::string_view digits) {
    std::uint64_t value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return value;
  }
  static std::string printable(char c) {
    return c > ' ' && c < 0x7f ? std::string(1, c)
                               : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

// limit + 1 if there are more.
std::size_t count_names(const Pattern& pattern, std::size_t limit) {
  std::size_t names = 1;
  for (const auto& group : pattern.groups) {
    std::size_t numbers = 0;
    for (const Range& range : group) {
      if (range.last - range.first >= limit) return limit + 1;
      numbers += static_cast<std::size_t>(range.last - range.first) + 1;
      if (numbers > limit) return limit + 1;
    }
    if (numbers > limit / names) return limit + 1;
    names *= numbers;
  }
  return names;
}

void append_names(const Pattern& pattern, std::size_t group, const std::string& begun,
                  std::vector<std::string>& names) {
  if (group == pattern.groups.size()) {
    names.push_back(begun);
    return;
  }
  for (const Range& range : pattern.groups[group]) {
    for (std::uint64_t number = range.first; number <= range.last; ++number) {
      append_names(pattern, group + 1,
                   fmt::format("{}{:0{}}{}", begun, number, range.width, pattern.texts[group + 1]),
                   names);
    }
  }
}

}  // namespace

Result<std::vector<std::string>> expand_host_list(std::string_view text, std::size_t limit) {
  std::vector<std::string> names;
  ListReader reader(text);
  do {
    const auto pattern = reader.name();
    if (!pattern) return pattern.error();
    if (count_names(*pattern, limit) > limit - names.size())
      return reader.error("the list names more than {} hosts, which is the limit", limit);
    append_names(*pattern, 0, pattern->texts.front(), names);
  } while (reader.take(','));
  return names;
}

Result<std::vector<int>> expand_task_counts(std::string_view text, std::size_t limit) {
  std::vector<int> counts;
  ListReader reader(text);
  do {
    const auto next = reader.repeated_count();
    if (!next) return next.error();
    if (next->second > limit - counts.size())
      return reader.error("the list has more than {} nodes, which is the limit", limit);
    counts.insert(counts.end(), static_cast<std::size_t>(next->second), next->first);
  } while (reader.take(','));
  return counts;
}

}  // namespace ddp::config
