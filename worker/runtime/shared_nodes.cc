#include "worker/runtime/shared_nodes.h"

#include <map>
#include <sstream>

#include <fmt/format.h>

namespace ddp::runtime {
namespace {

// Stands for an empty word.
constexpr const char* kNone = "-";

std::string word(const std::string& text) { return text.empty() ? kNone : text; }
std::string text_of(const std::string& word) { return word == kNone ? "" : word; }

bool can_share(const MeetingCard& a, const MeetingCard& b) {
  return a.machine == b.machine && a.agent_memory == b.agent_memory;
}

}  // namespace

std::string to_line(const MeetingCard& card) {
  return fmt::format("{} {} {} {} {}", to_word(card.machine), word(card.agent_memory),
                     word(card.family), card.region, card.head);
}

bool read_card(const std::string& line, MeetingCard& card) {
  std::istringstream words(line);
  std::string machine;
  std::string agent_memory;
  std::string family;
  words >> machine >> agent_memory >> family >> card.region >> card.head;
  card.machine = machine_name_of(machine);
  card.agent_memory = text_of(agent_memory);
  card.family = text_of(family);
  return !words.fail() && !card.machine.boot.empty() && card.region >= 0;
}

std::vector<int> node_sizes_of(const std::vector<MeetingCard>& cards) {
  std::vector<int> sizes;
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    if (rank == 0 || !can_share(cards[rank - 1], cards[rank])) sizes.push_back(0);
    ++sizes.back();
  }
  return sizes;
}

std::string why_apart(const std::vector<MeetingCard>& cards) {
  std::map<std::string, std::size_t> last_of_boot;
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    const auto [last, is_new] = last_of_boot.try_emplace(cards[rank].machine.boot, rank);
    const std::size_t before = last->second;
    last->second = rank;
    if (is_new || cards[before].machine.apart != cards[rank].machine.apart) continue;
    if (!can_share(cards[before], cards[rank])) {
      const std::string difference = cards[before].machine.difference(cards[rank].machine);
      return fmt::format(
          "ranks {} and {} cannot share memory: {}", before, rank,
          difference.empty() ? "different agents of ddp-run started them" : difference);
    }
    if (before + 1 != rank) {
      return fmt::format(
          "ranks {} and {} run on one machine, but rank {} between them does not; number the ranks "
          "machine by machine, so that they can share memory",
          before, rank, before + 1);
    }
  }
  return {};
}

std::string common_family(const std::vector<MeetingCard>& cards) {
  for (const MeetingCard& card : cards) {
    if (card.family != cards.front().family) return {};
  }
  return cards.front().family;
}

}  // namespace ddp::runtime
