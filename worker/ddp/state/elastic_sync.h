#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "worker/ddp/state/elastic_commit.h"
#include "worker/runtime/process_group.h"

// Internal to ElasticState: how ranks get the same commits, and each other's parts.
namespace ddp::elastic {

// What a rank holds, as it tells the others.
struct Holding {
  struct Item {
    CommitKey key;
    std::int64_t step = -1;
    int world_size = 0;
    bool initial = false;
    bool has_hooks = false;
    std::vector<Rank> parts;
    std::vector<std::uint64_t> part_bytes;
  };
  int node = 0;
  std::string registration;  // RegisteredState::registration().
  std::vector<Item> items;
};

// Returns every rank's holding. Collective.
std::vector<Holding> gather_holdings(ProcessGroup& group, const Holding& mine);

// The commit that all step back to: the newest one whose replicated state some rank has and whose
// every part exists on some rank. The same on all ranks.
struct Choice {
  std::optional<Holding::Item> commit;  // Nothing: there is none.
  bool trained = false;                 // Without one: somebody has a commit of some training.
};
Choice choose_commit(const std::vector<Holding>& holdings);

// Which ranks keep each part of the commit once a round has begun with it, by part. All ranks, if
// the parts are small or hooks take the mean over a world of another size. Otherwise the rank
// itself and its buddy, and rank 0 for ranks that no longer exist. So a loss before the next commit
// can be survived, too.
std::vector<std::vector<Rank>> keepers_of(const std::vector<Holding>& holdings,
                                          const Holding::Item& commit);

// Gives the chosen commit to the ranks that lack it and the parts to their keepers. `mine` is this
// rank's copy of the commit, or one to be overwritten. Collective.
void distribute(ProcessGroup& group, const std::vector<Holding>& holdings,
                const Holding::Item& commit, CommittedState& mine);

// Gives all ranks' copies of a commit rank 0's buffers: between steps every rank has its own (the
// statistics of batch normalisation), and rank 0's are what training goes on with. Collective.
void share_buffers(ProcessGroup& group, CommittedState& commit);

// Gives the root's replicated state to all ranks. Collective.
void broadcast_replicated(ProcessGroup& group, CommittedState& commit, Rank root);

// Who keeps copies of large parts: for each rank, the rank that it sends its part to, on another
// node if there is one.
std::vector<Rank> buddies_of(const std::vector<int>& nodes);

// The exchange of parts at a commit. Collective; no rank returns before all have come.
class PartExchange {
 public:
  // Up to so many bytes over all ranks, every rank gets every part.
  static constexpr std::size_t kAllLimit = 1u << 20;

  // nodes: of each rank.
  PartExchange(ProcessGroup& group, const std::vector<int>& nodes);
  // The commit has this rank's part and gets the others'. Returns rank 0's word.
  std::int64_t run(CommittedState& commit, std::int64_t word);

 private:
  // Gathers from every rank the word, the size of its part and the part's first `slot_` bytes.
  // Returns the sizes of all parts.
  std::vector<std::uint64_t> gather(const Part& own, std::int64_t word);
  void keep_all(CommittedState& commit, const std::vector<std::uint64_t>& sizes);
  void trade_with_buddy(CommittedState& commit, const std::vector<std::uint64_t>& sizes);

  ProcessGroup& group_;
  std::vector<Rank> buddies_;
  std::size_t slot_;  // The same on all ranks.
  std::vector<std::byte> sent_;
  std::vector<std::byte> gathered_;
};

}  // namespace ddp::elastic
