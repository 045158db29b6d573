#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "worker/ddp/state/elastic_commit.h"
#include "worker/runtime/process_group.h"

// Inside of ElasticState: how ranks come to have the same commits, and each other's parts.
namespace ddp::elastic {

// What a rank has, for the others.
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

// Of every rank. Collective.
std::vector<Holding> gather_holdings(ProcessGroup& group, const Holding& mine);

// Which commit all go back to: the newest one whose replicated state some rank has and of which
// every rank's part is somewhere. The same on all ranks.
struct Choice {
  std::optional<Holding::Item> commit;  // Nothing: there is none.
  bool trained = false;                 // Without one: somebody has a commit of some training.
};
Choice choose_commit(const std::vector<Holding>& holdings);

// Who is to have each part of the commit once a round has begun with it, by part: all ranks, where
// the parts are small or hooks take the mean over a world of another size; else the rank itself and
// its buddy, and rank 0 what is of a rank that there is no more. So the next loss can be survived
// before the next commit, too.
std::vector<std::vector<Rank>> keepers_of(const std::vector<Holding>& holdings,
                                          const Holding::Item& commit);

// Gives the chosen commit to the ranks that lack it and the parts to their keepers. `mine` is this
// rank's snapshot of the commit, or one to be overwritten. Collective.
void distribute(ProcessGroup& group, const std::vector<Holding>& holdings,
                const Holding::Item& commit, Snapshot& mine);

// Gives all snapshots of a commit rank 0's buffers: between steps every rank has its own (the
// statistics of batch normalisation), and rank 0's are what training goes on with. Collective.
void share_buffers(ProcessGroup& group, Snapshot& snapshot);

// The root's replicated state to all. Collective.
void broadcast_replicated(ProcessGroup& group, Snapshot& snapshot, Rank root);

// Who keeps copies of large parts: of each rank the one that it sends to. On another node if there
// is one.
std::vector<Rank> buddies_of(const std::vector<int>& nodes);

// The exchange of parts at a commit. Collective; no rank returns before all have come.
class PartExchange {
 public:
  // Up to so many bytes over all ranks, every rank gets every part.
  static constexpr std::size_t kAllLimit = 1u << 20;

  // nodes: of each rank.
  PartExchange(ProcessGroup& group, const std::vector<int>& nodes);
  // The snapshot has this rank's part; it gets others'. Gives the word of rank 0.
  std::int64_t run(Snapshot& snapshot, std::int64_t word);

 private:
  // Sends every rank `slot_` bytes of each part behind its size and this rank's word. The sizes of
  // all parts.
  std::vector<std::uint64_t> gather(const Part& own, std::int64_t word);
  void keep_all(Snapshot& snapshot, const std::vector<std::uint64_t>& sizes);
  void trade_with_buddy(Snapshot& snapshot, const std::vector<std::uint64_t>& sizes);

  ProcessGroup& group_;
  std::vector<Rank> buddies_;
  std::size_t slot_;  // The same on all ranks.
  std::vector<std::byte> sent_;
  std::vector<std::byte> gathered_;
};

}  // namespace ddp::elastic
