#include "launcher/rendezvous/ranks.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

namespace ddp::rendezvous {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Takes the digits at the front of `text` off; returns them without leading zeros.
std::string_view take_number(std::string_view& text) {
  std::size_t end = 0;
  while (end < text.size() && is_digit(text[end])) ++end;
  std::string_view number = text.substr(0, end);
  text.remove_prefix(end);
  number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
  return number;
}

int or_last(int rank) { return rank >= 0 ? rank : std::numeric_limits<int>::max(); }

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a;
  const std::string_view whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view number_a = take_number(a);
      const std::string_view number_b = take_number(b);
      if (number_a.size() != number_b.size()) return number_a.size() < number_b.size();
      if (number_a != number_b) return number_a < number_b;
    } else {
      if (a.front() != b.front()) return a.front() < b.front();
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;  // Equal except for leading zeros.
}

std::vector<Candidate> choose_members(std::vector<Candidate> candidates, std::size_t limit) {
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::make_tuple(a.excluded, a.previous < 0, a.wanted < 0, a.order) <
           std::make_tuple(b.excluded, b.previous < 0, b.wanted < 0, b.order);
  });
  if (candidates.size() > limit) candidates.resize(limit);
  return candidates;
}

std::vector<Candidate> assign_group_ranks(const std::vector<Candidate>& candidates) {
  const int count = static_cast<int>(candidates.size());
  std::vector<std::optional<Candidate>> seats(candidates.size());
  std::vector<Candidate> unseated;
  const auto seat = [&](const Candidate& candidate, int rank) {
    if (rank < 0 || rank >= count || seats[static_cast<std::size_t>(rank)]) return false;
    seats[static_cast<std::size_t>(rank)] = candidate;
    return true;
  };
  std::vector<Candidate> without_wish;
  for (const Candidate& candidate : candidates) {
    if (!seat(candidate, candidate.wanted)) without_wish.push_back(candidate);
  }
  for (const Candidate& candidate : without_wish) {
    if (!seat(candidate, candidate.previous)) unseated.push_back(candidate);
  }
  std::sort(unseated.begin(), unseated.end(), [](const Candidate& a, const Candidate& b) {
    if (a.wanted != b.wanted) return or_last(a.wanted) < or_last(b.wanted);
    if (a.host != b.host) return natural_less(a.host, b.host);
    return a.order < b.order;
  });
  std::vector<Candidate> by_rank;
  auto next = unseated.begin();
  for (auto& taken : seats) by_rank.push_back(taken ? *taken : *next++);
  return by_rank;
}

}  // namespace ddp::rendezvous
