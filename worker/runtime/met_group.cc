#include "worker/runtime/met_group.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <numeric>
#include <optional>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "common/base/random_hex.h"
#include "common/wire/shm_file.h"
#include "worker/runtime/calibration.h"
#include "worker/runtime/memory_handout.h"
#include "worker/runtime/node_links.h"
#include "worker/runtime/node_memory.h"
#include "worker/runtime/rank_board.h"
#include "worker/runtime/shared_nodes.h"
#include "worker/runtime/worker_environment.h"

namespace ddp::runtime {
namespace {

constexpr Duration kServeLook{20};
constexpr std::size_t kFamilyBytes = 8;
// Nobody else sees the round in memory that no agent made.
constexpr Round kOnlyRound = 0;

// The latest groups of this process that share memory and watch. It ends with the last of them.
struct Family {
  std::string name;
  std::weak_ptr<transport::Watch> watch;
  std::weak_ptr<transport::Arena> arena;
  int region = 0;
};

struct KnownFamily {
  std::mutex mutex;
  Family family;
};

KnownFamily& known_family() {
  static KnownFamily known;
  return known;
}

// What keeps the family alive while a group of it is made.
struct OpenFamily {
  std::string name;  // Empty: there is none.
  std::shared_ptr<transport::Watch> watch;
  std::shared_ptr<transport::Arena> arena;
  int region = 0;
};

OpenFamily open_family() {
  KnownFamily& known = known_family();
  const std::lock_guard lock(known.mutex);
  OpenFamily open{known.family.name, known.family.watch.lock(), known.family.arena.lock(),
                  known.family.region};
  const bool lives = open.watch && open.arena && open.arena->mapping()->header().abort == 0;
  return lives ? open : OpenFamily{};
}

void know_family(const std::string& name, const transport::Transport& transport, int region) {
  KnownFamily& known = known_family();
  const std::lock_guard lock(known.mutex);
  known.family = {name, transport.watch(), transport.arena(), region};
}

std::size_t index(int number) { return static_cast<std::size_t>(number); }

Result<NodeMemory> private_memory() {
  auto mapping = transport::SharedMapping::create(1, kOnlyRound);
  if (!mapping) return mapping.error();
  return NodeMemory{*mapping, std::make_shared<transport::Arena>(*mapping, 0), 0};
}

// How one rank finds out with whom it shares memory, and opens it.
//
// 1. Every rank publishes its card and reads those of the others. From the cards, all ranks derive
//    the same nodes.
// 2. If all of them belong to one family, the cards also say where everybody's head lies, and that
//    is all.
// 3. Otherwise the first rank of each node makes its memory, unless an agent has, and hands it out.
//    Every rank publishes where its head lies in it, or why it has no memory. If that holds for one
//    rank of a node, each of the node's ranks becomes a node of its own.
class Placing {
 public:
  Placing(Rank rank, int world_size, const Meeting& meeting, TimePoint deadline)
      : rank_(rank),
        world_size_(world_size),
        board_(meeting, world_size, "the process group " + meeting.group, deadline) {}

  // Collective; throws CollectiveError.
  void run();

  const std::vector<int>& node_sizes() const { return node_sizes_; }
  const std::shared_ptr<transport::Arena>& arena() const { return memory_.arena; }
  std::shared_ptr<transport::Segment> segment() {
    return transport::Segment::of_heads(memory_.mapping, regions_, heads_, std::move(*own_head_));
  }
  // The family that the group belongs to, and its watch; null if the group is to begin it.
  const std::string& family() const { return family_; }
  const std::shared_ptr<transport::Watch>& watch() const { return known_.watch; }
  int region() const { return memory_.region; }

 private:
  // What a rank of a new family tells the others.
  struct Attached {
    bool done = false;
    int region = 0;
    std::uint64_t head = 0;
    std::string family;  // Rank 0's counts.
    std::string reason;  // Why it is not done.
  };

  void show_card();
  void join_known_family();
  void begin_family();
  Result<NodeMemory> open_memory();
  Result<NodeMemory> make_memory();
  Result<NodeMemory> receive_memory();
  void serve(MemoryHandout& handout);
  static Attached read_attached(const std::string& text);
  void divide(std::vector<Attached>& all);
  void use_private_memory();
  bool reserve_head();

  int size() const { return node_sizes_[node_]; }
  Rank first() const {
    return std::accumulate(node_sizes_.begin(),
                           node_sizes_.begin() + static_cast<std::ptrdiff_t>(node_), 0);
  }
  void find_node();
  void require(const Outcome& outcome) {
    if (outcome) throw CollectiveError(*outcome);
  }

  const Rank rank_;
  const int world_size_;
  RankBoard board_;
  OpenFamily known_;
  std::vector<MeetingCard> cards_;
  std::vector<int> node_sizes_;
  std::size_t node_ = 0;  // This rank's.
  std::string family_;
  NodeMemory memory_;
  std::vector<int> regions_;          // Of the members of this rank's node,
  std::vector<std::uint64_t> heads_;  // and their heads.
  std::optional<transport::SubGroupHead> own_head_;
};

void Placing::run() {
  board_.expect("card");
  show_card();
  node_sizes_ = node_sizes_of(cards_);
  find_node();
  family_ = common_family(cards_);
  if (!family_.empty()) {
    join_known_family();
  } else {
    begin_family();
  }
}

void Placing::find_node() {
  node_ = 0;
  for (Rank end = node_sizes_[0]; end <= rank_; end += node_sizes_[++node_]) {
  }
}

bool Placing::reserve_head() {
  own_head_.reset();
  auto head = transport::SubGroupHead::allocate(memory_.arena);
  if (head) own_head_.emplace(std::move(*head));
  return own_head_.has_value();
}

void Placing::show_card() {
  MeetingCard card;
  card.machine = machine_name();
  if (process_variable("DDP_SHM_FD")) {
    card.agent_memory = agent_memory_name(read_worker_environment(process_variable));
  }
  known_ = open_family();
  if (!known_.name.empty()) {
    memory_ = {known_.arena->mapping(), known_.arena, known_.region};
    if (reserve_head()) {
      card.family = known_.name;
      card.region = known_.region;
      card.head = own_head_->offset();
    }
  }
  std::vector<std::string> lines;
  require(board_.exchange("/card", rank_, world_size_, to_line(card), lines));
  for (Rank rank = 0; rank < world_size_; ++rank) {
    const std::string& line = lines[index(rank)];
    if (!read_card(line, cards_.emplace_back())) {
      throw CollectiveError(fmt::format("rank {} shows '{}', which is not the card of a rank; all "
                                        "ranks must use the same version of ddp-run",
                                        rank, line),
                            Errc::kProtocol, rank);
    }
  }
}

void Placing::join_known_family() {
  for (Rank rank = first(); rank < first() + size(); ++rank) {
    regions_.push_back(cards_[index(rank)].region);
    heads_.push_back(cards_[index(rank)].head);
  }
}

void Placing::begin_family() {
  known_ = {};
  own_head_.reset();
  Result<NodeMemory> memory = open_memory();
  std::string told;
  if (memory) {
    memory_ = *memory;
    told = reserve_head() ? fmt::format("yes {} {} {}", memory_.region, own_head_->offset(),
                                        random_hex(kFamilyBytes))
                          : "no there is no room in it";
  } else {
    told = "no " + memory.error().message;
  }
  std::vector<std::string> texts;
  require(board_.exchange("/attached", rank_, world_size_, told, texts));
  std::vector<Attached> all;
  for (const std::string& text : texts) all.push_back(read_attached(text));
  family_ = all.front().family;
  divide(all);
  for (Rank rank = first(); rank < first() + size(); ++rank) {
    regions_.push_back(all[index(rank)].region);
    heads_.push_back(all[index(rank)].head);
  }
  if (rank_ == 0) {
    const std::string why = why_apart(cards_);
    if (!why.empty()) fmt::print(stderr, "ddp: {}\n", why);
  }
}

// The ranks of a node, one of which has no memory, become nodes of their own.
void Placing::divide(std::vector<Attached>& all) {
  Rank begin = 0;
  const std::vector<int> sizes = std::exchange(node_sizes_, {});
  for (const int size : sizes) {
    const Rank end = begin + size;
    Rank failed = begin;
    while (failed < end && all[index(failed)].done) ++failed;
    if (failed == end) {
      node_sizes_.push_back(size);
    } else {
      node_sizes_.insert(node_sizes_.end(), index(size), 1);
      // The cards of a later group would take these ranks for one node again.
      family_.clear();
      if (rank_ == begin) {
        fmt::print(stderr,
                   "ddp: ranks {} to {} run on one machine, but use TCP, as rank {} has no shared "
                   "memory: {}\n",
                   begin, end - 1, failed, all[index(failed)].reason);
      }
      if (begin <= rank_ && rank_ < end) {
        use_private_memory();
        all[index(rank_)] = {true, memory_.region, own_head_->offset(), {}, {}};
      }
    }
    begin = end;
  }
  find_node();
}

void Placing::use_private_memory() {
  const Result<NodeMemory> memory = private_memory();
  if (!memory) throw CollectiveError(memory.error().message, memory.error().code, rank_);
  own_head_.reset();
  memory_ = *memory;
  if (!reserve_head()) throw CollectiveError("no memory is left", Errc::kIo, rank_);
}

Placing::Attached Placing::read_attached(const std::string& text) {
  Attached attached;
  std::istringstream words(text);
  std::string done;
  words >> done;
  attached.done = done == "yes";
  if (attached.done) {
    words >> attached.region >> attached.head >> attached.family;
  } else {
    std::getline(words >> std::ws, attached.reason);
  }
  return attached;
}

Result<NodeMemory> Placing::open_memory() {
  if (!cards_[index(rank_)].agent_memory.empty()) {
    try {
      return open_agent_memory(read_worker_environment(process_variable));
    } catch (const CollectiveError& error) {
      return Error{error.code, error.what()};
    }
  }
  if (size() == 1) return private_memory();
  return rank_ == first() ? make_memory() : receive_memory();
}

Result<NodeMemory> Placing::make_memory() {
  const std::string key = fmt::format("/memory/{}", rank_);
  const auto refuse = [&](const Error& error) {
    require(board_.publish(key, "no " + error.message));
    return error;
  };
  auto file = wire::make_shm_file(size(), kOnlyRound);
  if (!file) return refuse(file.error());
  auto mapping = transport::SharedMapping::attach(file->get(), size(), kOnlyRound);
  if (!mapping) return refuse(mapping.error());
  auto handout = MemoryHandout::open(std::move(*file));
  if (!handout) return refuse(handout.error());
  require(board_.publish(key, "yes " + handout->name()));
  serve(*handout);
  return NodeMemory{*mapping, std::make_shared<transport::Arena>(*mapping, 0), 0};
}

// Until every other rank of the node has the memory or has said that it cannot get it.
void Placing::serve(MemoryHandout& handout) {
  int served = 0;
  while (served < size() - 1 && Clock::now() < board_.deadline()) {
    const int more = handout.serve(kServeLook);
    served += more;
    if (more > 0) continue;
    bool all_told = true;
    for (Rank rank = rank_ + 1; rank < rank_ + size(); ++rank) {
      all_told = all_told && board_.has(fmt::format("/attached/{}", rank));
    }
    if (all_told) return;
  }
}

Result<NodeMemory> Placing::receive_memory() {
  std::string told;
  require(board_.read(fmt::format("/memory/{}", first()), told));
  if (!told.starts_with("yes ")) {
    return make_error(Errc::kIo, "rank {} could not make it", first());
  }
  auto file = take_memory(told.substr(4), board_.deadline());
  if (!file) return file.error();
  auto mapping = transport::SharedMapping::attach(file->get(), size(), kOnlyRound);
  if (!mapping) return mapping.error();
  const int region = rank_ - first();
  return NodeMemory{*mapping, std::make_shared<transport::Arena>(*mapping, region), region};
}

}  // namespace

std::shared_ptr<Group> make_met_group(Rank rank, int world_size, Meeting meeting,
                                      TimePoint deadline, const ProcessGroupOptions& options) {
  std::optional<Placing> placing;
  placing.emplace(rank, world_size, meeting, deadline);
  placing->run();
  transport::Topology topology(placing->node_sizes(), rank);
  const std::shared_ptr<transport::Arena> arena = placing->arena();
  auto segment = placing->segment();
  const std::string family = placing->family();
  const std::shared_ptr<transport::Watch> watch = placing->watch();
  const int region = placing->region();
  placing.reset();  // It holds the store.

  transport::LaneLinks links;
  if (topology.nodes() > 1) {
    meeting.guard = round_guard();
    NodeLinks node_links(meeting, world_size, kOnlyRound, deadline);
    if (auto failure = node_links.connect(topology, links)) throw CollectiveError(*failure);
  }
  const bool spins = transport::spinning_pays(topology.local_size());
  auto transport = std::make_unique<transport::Transport>(std::move(topology), std::move(segment),
                                                          arena, std::move(links), spins);
  if (watch) {
    transport->share_watch(watch);
  } else if (world_size > 1) {
    transport->start_watch({transport::stall_timeout_from_environment(options.stall_timeout)});
    if (!family.empty()) know_family(family, *transport, region);
  }
  auto group = Group::make(std::move(transport), kOnlyRound, options, std::move(meeting));
  // Detect missing ranks now, within connect_timeout.
  const auto left = std::chrono::ceil<Duration>(deadline - Clock::now());
  group->barrier({std::max(left, Duration(1)), "all ranks present"})->wait();
  calibrate(*group);
  return group;
}

}  // namespace ddp::runtime
