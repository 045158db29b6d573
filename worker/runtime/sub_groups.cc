#include <algorithm>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/errc.h"
#include "worker/runtime/group.h"
#include "worker/runtime/node_links.h"

// Sub-groups of a Group: their members, memory and links.
namespace ddp::runtime {

// What every rank of the parent group tells the others before a sub-group is made.
struct Group::Proposal {
  std::uint64_t head = 0;     // Offset of its SubGroupHead in its region of the node's memory.
  std::int64_t made = 0;      // Sub-groups made before.
  std::uint64_t members = 0;  // For new_group: a digest of the list; 0 for split.
  std::int64_t color = -1;    // Ranks with the same color form a group.
  std::int64_t key = 0;
};

namespace {

std::uint64_t digest_of(std::span<const Rank> ranks) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const Rank rank : ranks) hash = (hash ^ static_cast<std::uint64_t>(rank)) * 0x100000001b3u;
  return hash | 1;
}

// How the members, in the order of the sub-group, are spread over nodes: consecutive members on one
// node of the parent count as one node.
struct Spread {
  std::vector<int> sizes;
  std::vector<Rank> beside;  // Members (ranks of the parent) on this rank's node.
};

Spread spread_of(const transport::Topology& parent, const std::vector<Rank>& members) {
  Spread spread;
  int last_node = -1;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const int node = parent.node_of(members[i]);
    if (node != last_node) {
      spread.sizes.push_back(0);
      begin = i;
    }
    ++spread.sizes.back();
    last_node = node;
    const auto own = std::find(members.begin() + static_cast<std::ptrdiff_t>(begin),
                               members.begin() + static_cast<std::ptrdiff_t>(i + 1), parent.rank());
    const bool here = own != members.begin() + static_cast<std::ptrdiff_t>(i + 1);
    if (here) {
      spread.beside.assign(members.begin() + static_cast<std::ptrdiff_t>(begin),
                           members.begin() + static_cast<std::ptrdiff_t>(i + 1));
    }
  }
  return spread;
}

}  // namespace

std::shared_ptr<ProcessGroup> Group::new_group(std::span<const Rank> ranks) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size_ || (i > 0 && ranks[i] <= ranks[i - 1])) {
      throw std::invalid_argument(
          fmt::format("new_group: element {} is {}; the list must have ranks of 0..{}, each at "
                      "most once, in ascending order",
                      i, ranks[i], size_ - 1));
    }
  }
  const bool member = std::find(ranks.begin(), ranks.end(), rank_) != ranks.end();
  return make_sub_group({0, sub_groups_made_, digest_of(ranks), member ? 0 : -1, 0}, "new_group");
}

std::shared_ptr<ProcessGroup> Group::split(int color, int key) {
  return make_sub_group({0, sub_groups_made_, 0, color < 0 ? -1 : color, key}, "split");
}

std::shared_ptr<Group> Group::make_sub_group(Proposal proposal, const char* name) {
  const bool member = proposal.color >= 0;
  auto head = member ? transport::SubGroupHead::allocate(transport_->arena()) : std::nullopt;
  if (member && !head) {
    throw CollectiveError(fmt::format("{}: there is no shared memory left", name), Errc::kIo,
                          rank_);
  }
  if (head) proposal.head = head->offset();
  std::vector<Proposal> all(static_cast<std::size_t>(size_));
  OpOptions options;
  options.tag = name;
  options.synchronous = true;
  all_gather({&proposal, sizeof(proposal), DType::kU8},
             {all.data(), all.size() * sizeof(proposal), DType::kU8}, options);
  ++sub_groups_made_;
  for (Rank rank = 0; rank < size_; ++rank) {
    const Proposal& theirs = all[static_cast<std::size_t>(rank)];
    if (theirs.members == proposal.members && theirs.made == proposal.made) continue;
    const Failure cause{Errc::kMismatch, -1,
                        fmt::format("{}: rank {} and rank {} call it with different lists, or one "
                                    "of them calls something else",
                                    name, std::min(rank, rank_), std::max(rank, rank_))};
    abort_with(cause);
    throw CollectiveError(cause);
  }
  if (!member) return nullptr;

  std::vector<Rank> members;
  for (Rank rank = 0; rank < size_; ++rank) {
    if (all[static_cast<std::size_t>(rank)].color == proposal.color) members.push_back(rank);
  }
  std::stable_sort(members.begin(), members.end(), [&](Rank a, Rank b) {
    return all[static_cast<std::size_t>(a)].key < all[static_cast<std::size_t>(b)].key;
  });
  std::vector<std::uint64_t> heads;
  for (const Proposal& each : all) heads.push_back(each.head);
  return connect_sub_group(members, heads, std::move(*head),
                           fmt::format("{}.{}", proposal.made, proposal.color));
}

std::shared_ptr<Group> Group::connect_sub_group(const std::vector<Rank>& members,
                                                const std::vector<std::uint64_t>& heads,
                                                transport::SubGroupHead own_head,
                                                const std::string& name) {
  const transport::Topology& parent = transport_->topology();
  const Spread spread = spread_of(parent, members);
  std::vector<int> regions;
  std::vector<std::uint64_t> local_heads;
  for (const Rank rank : spread.beside) {
    regions.push_back(transport_->segment().region_of(rank - parent.first(parent.node())));
    local_heads.push_back(heads[static_cast<std::size_t>(rank)]);
  }
  const auto own = std::find(members.begin(), members.end(), rank_);
  transport::Topology topology(spread.sizes, static_cast<Rank>(own - members.begin()));
  Meeting meeting = meeting_;
  meeting.prefix = fmt::format("{}/group/{}", meeting_.prefix, name);
  meeting.group =
      fmt::format("{} of ranks {} of {}", name, fmt::join(members, ","), meeting_.group);
  meeting.world_ranks.clear();
  for (const Rank rank : members) meeting.world_ranks.push_back(rank_in_world(rank));
  transport::LaneLinks links;
  if (topology.nodes() > 1) {
    if (!meeting.store) {
      throw std::invalid_argument(
          "a group that spans several nodes needs a store through which its ranks meet");
    }
    NodeLinks node_links(meeting, topology.world_size(), round_,
                         Clock::now() + options_.connect_timeout);
    if (auto failure = node_links.connect(topology, links)) {
      abort_with(*failure);
      throw CollectiveError(*failure);
    }
  }
  const bool spin = transport::spinning_pays(topology.local_size());
  auto segment = transport::Segment::of_heads(transport_->segment().mapping(), regions, local_heads,
                                              std::move(own_head));
  auto transport = std::make_unique<transport::Transport>(
      std::move(topology), std::move(segment), transport_->arena(), std::move(links), spin);
  transport->share_watch(transport_->watch());
  auto group = Group::make(std::move(transport), round_, options_, std::move(meeting));
  group->choose(collectives_.choice());
  return group;
}

}  // namespace ddp::runtime
