#include "common/config/rank_set.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/base/parse_number.h"

namespace ddp::config {
namespace {

bool read_number(std::string_view text, Rank& value) {
  const auto number = parse_whole_number<Rank>(text, 0);
  value = number.value_or(0);
  return number.has_value();
}

bool read_range(std::string_view text, RankSet::Range& range) {
  const auto dash = text.find('-');
  if (!read_number(text.substr(0, dash), range.first)) return false;
  range.last = range.first;
  if (dash == std::string_view::npos) return true;
  return read_number(text.substr(dash + 1), range.last) && range.first <= range.last;
}

}  // namespace

bool RankSet::contains(Rank rank) const {
  return std::any_of(ranges.begin(), ranges.end(), [rank](const Range& range) {
    return range.first <= rank && rank <= range.last;
  });
}

Result<RankSet> parse_rank_set(std::string_view text) {
  RankSet set;
  for (;;) {
    const auto comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    RankSet::Range range;
    if (!read_range(item, range)) {
      return make_error(Errc::kInvalidArgument,
                        "'{}' is not a rank or a range of ranks; write for example 0,8-15", item);
    }
    set.ranges.push_back(range);
    if (comma == std::string_view::npos) return set;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace ddp::config
