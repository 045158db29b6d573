#include "common/base/nearest.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace ddp {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows of the table of distances between the beginnings of a and b: the two before, and the one
  // that is computed.
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> above(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, above);
    std::swap(above, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row.back();
}

std::string_view nearest_of(std::string_view typed, const std::vector<std::string>& names) {
  std::string_view best;
  std::size_t best_distance = std::max<std::size_t>(2, typed.size() / 3) + 1;
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(typed, name);
    if (distance >= best_distance) continue;
    best_distance = distance;
    best = name;
  }
  return best;
}

}  // namespace ddp
