#include "worker/ddp/state/elastic_sync.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "worker/ddp/tensors/tensors.h"
#include "worker/ddp/tensors/text_exchange.h"

namespace ddp::elastic {
namespace {

using nlohmann::json;

constexpr const char* kSyncTag = "elastic sync";
constexpr const char* kCommitTag = "elastic commit";
constexpr std::uint32_t kPartTag = 0xE1A5'71C0;
constexpr std::size_t kHeadBytes = sizeof(std::uint64_t) + sizeof(std::int64_t);
constexpr std::size_t kSlotStep = 4096;

Buffer bytes_of(std::byte* data, std::size_t bytes) { return {data, bytes, DType::kU8}; }

OpOptions tagged(const char* tag) { return {{}, tag}; }

json to_json(const Holding& holding) {
  json items = json::array();
  for (const auto& item : holding.items) {
    items.push_back({{"round", item.key.round},
                     {"serial", item.key.serial},
                     {"step", item.step},
                     {"world", item.world_size},
                     {"initial", item.initial},
                     {"hooks", item.has_hooks},
                     {"parts", item.parts},
                     {"bytes", item.part_bytes}});
  }
  return {{"node", holding.node}, {"registration", holding.registration}, {"items", items}};
}

Holding holding_from(const json& text) {
  Holding holding{text.at("node").get<int>(), text.at("registration").get<std::string>(), {}};
  for (const json& item : text.at("items")) {
    holding.items.push_back({{item.at("round").get<Round>(), item.at("serial").get<std::int64_t>()},
                             item.at("step").get<std::int64_t>(),
                             item.at("world").get<int>(),
                             item.at("initial").get<bool>(),
                             item.at("hooks").get<bool>(),
                             item.at("parts").get<std::vector<Rank>>(),
                             item.at("bytes").get<std::vector<std::uint64_t>>()});
  }
  return holding;
}

const Holding::Item* find_item(const Holding& holding, const CommitKey& key) {
  for (const auto& item : holding.items) {
    if (item.key == key) return &item;
  }
  return nullptr;
}

// How many bytes the rank has of that part; nothing if it has none.
std::optional<std::uint64_t> part_bytes(const Holding& holding, const CommitKey& key, Rank part) {
  const auto* item = find_item(holding, key);
  if (item == nullptr) return {};
  for (std::size_t i = 0; i < item->parts.size(); ++i) {
    if (item->parts[i] == part) return item->part_bytes[i];
  }
  return {};
}

bool is_complete(const std::vector<Holding>& holdings, const Holding::Item& commit) {
  for (Rank part = 0; part < commit.world_size; ++part) {
    const bool there = std::any_of(holdings.begin(), holdings.end(), [&](const Holding& holding) {
      return part_bytes(holding, commit.key, part).has_value();
    });
    if (!there) return false;
  }
  return true;
}

void broadcast_bytes(ProcessGroup& group, std::byte* data, std::size_t bytes, Rank root) {
  if (bytes > 0) group.broadcast(bytes_of(data, bytes), root, tagged(kSyncTag))->wait();
}

// All operations are issued before the first is waited for. Whatever the end, none of them uses a
// tensor after it.
void broadcast_tensors(ProcessGroup& group, const std::vector<at::Tensor>& tensors, Rank root) {
  std::vector<WorkPtr> works;
  try {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.numel() == 0) continue;
      works.push_back(
          group.broadcast(bytes_of(static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()),
                          root, tagged(kSyncTag)));
    }
    for (const WorkPtr& work : works) work->wait();
  } catch (...) {
    for (WorkPtr& work : works) wait_quietly(work);
    throw;
  }
}

// This rank's tensors stay as they are if `keep`.
void share_replicated(ProcessGroup& group, CommittedState& commit, Rank root, bool keep) {
  std::string header = broadcast_text(group, commit.header, root, kSyncTag);
  if (group.rank() == root) {
    broadcast_tensors(group, commit.tensors, root);
    return;
  }
  CommittedState dropped;
  CommittedState& into = keep ? dropped : commit;
  into.header = std::move(header);
  make_tensors(into);
  broadcast_tensors(group, into.tensors, root);
}

}  // namespace

std::vector<Holding> gather_holdings(ProcessGroup& group, const Holding& mine) {
  std::vector<Holding> holdings;
  for (const std::string& text : gather_texts(group, to_json(mine).dump(), kSyncTag)) {
    holdings.push_back(holding_from(parse_json(text)));
  }
  for (std::size_t rank = 1; rank < holdings.size(); ++rank) {
    if (holdings[rank].registration == holdings[0].registration) continue;
    throw std::invalid_argument(
        "rank " + std::to_string(rank) + " has registered different state from rank 0; here:\n" +
        holdings[rank].registration + "there:\n" + holdings[0].registration);
  }
  return holdings;
}

Choice choose_commit(const std::vector<Holding>& holdings) {
  std::map<CommitKey, Holding::Item> all;
  for (const Holding& holding : holdings) {
    for (const auto& item : holding.items) all.emplace(item.key, item);
  }
  Choice choice;
  for (auto item = all.rbegin(); item != all.rend(); ++item) {
    if (is_complete(holdings, item->second)) {
      choice.commit = item->second;
      return choice;
    }
    if (!item->second.initial) choice.trained = true;
  }
  return choice;
}

std::vector<std::vector<Rank>> keepers_of(const std::vector<Holding>& holdings,
                                          const Holding::Item& commit) {
  const auto size = static_cast<Rank>(holdings.size());
  std::vector<int> nodes;
  std::vector<Rank> all;
  for (const Holding& each : holdings) {
    all.push_back(static_cast<Rank>(nodes.size()));
    nodes.push_back(each.node);
  }
  std::uint64_t bytes = 0;
  for (Rank part = 0; part < commit.world_size; ++part) {
    for (const Holding& each : holdings) {
      const auto there = part_bytes(each, commit.key, part);
      if (there) {
        bytes += *there;
        break;
      }
    }
  }
  const bool takes_mean = commit.world_size != size && commit.has_hooks;
  if (takes_mean || bytes <= PartExchange::kAllLimit) {
    return std::vector<std::vector<Rank>>(static_cast<std::size_t>(commit.world_size), all);
  }
  const std::vector<Rank> buddies = buddies_of(nodes);
  std::vector<std::vector<Rank>> keepers;
  for (Rank part = 0; part < commit.world_size; ++part) {
    const Rank own = part % size;  // Some rank must keep it if its own rank no longer exists.
    std::set<Rank> some = {own, buddies[static_cast<std::size_t>(own)]};
    if (part >= size) some.insert(0);
    keepers.emplace_back(some.begin(), some.end());
  }
  return keepers;
}

void distribute(ProcessGroup& group, const std::vector<Holding>& holdings,
                const Holding::Item& commit, CommittedState& mine) {
  const auto own = static_cast<std::size_t>(group.rank());
  const auto has_it = [&](const Holding& each) { return find_item(each, commit.key) != nullptr; };
  const auto source = std::find_if(holdings.begin(), holdings.end(), has_it);
  if (!std::all_of(holdings.begin(), holdings.end(), has_it)) {
    share_replicated(group, mine, static_cast<Rank>(source - holdings.begin()),
                     has_it(holdings[own]));
  }
  const std::vector<std::vector<Rank>> keepers = keepers_of(holdings, commit);
  for (Rank part = 0; part < commit.world_size; ++part) {
    Rank holder = -1;
    std::uint64_t bytes = 0;
    for (Rank rank = group.size() - 1; rank >= 0; --rank) {
      const auto there = part_bytes(holdings[static_cast<std::size_t>(rank)], commit.key, part);
      if (!there) continue;
      holder = rank;
      bytes = *there;
    }
    const auto& wanted_by = keepers[static_cast<std::size_t>(part)];
    const bool wanted = std::any_of(wanted_by.begin(), wanted_by.end(), [&](Rank rank) {
      return !part_bytes(holdings[static_cast<std::size_t>(rank)], commit.key, part);
    });
    if (!wanted) continue;
    // A rank that has it already, or does not keep it, receives it into scratch memory.
    const bool keeps =
        std::find(wanted_by.begin(), wanted_by.end(), group.rank()) != wanted_by.end();
    Part dropped;
    Part& into =
        group.rank() == holder || (keeps && !mine.has_part(part)) ? mine.parts[part] : dropped;
    into.bytes.resize(bytes);
    broadcast_bytes(group, into.bytes.data(), bytes, holder);
    into.there = true;
  }
}

void share_buffers(ProcessGroup& group, CommittedState& commit) {
  std::size_t bytes = 0;
  for (const std::size_t index : commit.buffers) bytes += commit.tensors[index].nbytes();
  if (bytes == 0 || group.size() == 1) return;
  std::vector<std::byte> packed(bytes);
  std::byte* at = packed.data();
  for (const std::size_t index : commit.buffers) {
    const at::Tensor& tensor = commit.tensors[index];
    std::memcpy(at, tensor.data_ptr(), tensor.nbytes());
    at += tensor.nbytes();
  }
  group.broadcast(bytes_of(packed.data(), bytes), 0, tagged(kCommitTag))->wait();
  at = packed.data();
  for (const std::size_t index : commit.buffers) {
    const at::Tensor& tensor = commit.tensors[index];
    std::memcpy(tensor.data_ptr(), at, tensor.nbytes());
    at += tensor.nbytes();
  }
}

void broadcast_replicated(ProcessGroup& group, CommittedState& commit, Rank root) {
  if (group.size() > 1) share_replicated(group, commit, root, false);
}

std::vector<Rank> buddies_of(const std::vector<int>& nodes) {
  const auto size = static_cast<Rank>(nodes.size());
  std::vector<Rank> buddies;
  for (Rank rank = 0; rank < size; ++rank) {
    const int node = nodes[static_cast<std::size_t>(rank)];
    // The ranks of a node get buddies on different nodes, as far as there are enough.
    Rank place = 0;
    std::vector<Rank> elsewhere;
    for (Rank i = 1; i < size; ++i) {
      const Rank other = (rank + i) % size;
      if (nodes[static_cast<std::size_t>(other)] != node) {
        elsewhere.push_back(other);
      }
    }
    std::sort(elsewhere.begin(), elsewhere.end());
    for (Rank before = 0; before < rank; ++before) {
      if (nodes[static_cast<std::size_t>(before)] == node) ++place;
    }
    if (elsewhere.empty()) {
      buddies.push_back((rank + 1) % size);
      continue;
    }
    // Of the next node first.
    const auto next = std::lower_bound(elsewhere.begin(), elsewhere.end(), rank);
    const auto first = static_cast<std::size_t>(next - elsewhere.begin());
    buddies.push_back(elsewhere[(first + static_cast<std::size_t>(place)) % elsewhere.size()]);
  }
  return buddies;
}

PartExchange::PartExchange(ProcessGroup& group, const std::vector<int>& nodes)
    : group_(group), buddies_(buddies_of(nodes)), slot_(2 * kSlotStep) {}

std::vector<std::uint64_t> PartExchange::gather(const Part& own, std::int64_t word) {
  const auto ranks = static_cast<std::size_t>(group_.size());
  sent_.resize(slot_);
  gathered_.resize(slot_ * ranks);
  const std::uint64_t bytes = own.bytes.size();
  std::memcpy(sent_.data(), &bytes, sizeof(bytes));
  std::memcpy(sent_.data() + sizeof(bytes), &word, sizeof(word));
  std::memcpy(sent_.data() + kHeadBytes, own.bytes.data(),
              std::min(own.bytes.size(), slot_ - kHeadBytes));
  group_
      .all_gather(bytes_of(sent_.data(), sent_.size()),
                  bytes_of(gathered_.data(), gathered_.size()), tagged(kCommitTag))
      ->wait();
  std::vector<std::uint64_t> sizes(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::memcpy(&sizes[rank], gathered_.data() + rank * slot_, sizeof(bytes));
  }
  return sizes;
}

std::int64_t PartExchange::run(CommittedState& commit, std::int64_t word) {
  if (group_.size() == 1) {
    group_.barrier(tagged(kCommitTag))->wait();  // It fails where the round has ended.
    return word;
  }
  const Part& own = commit.parts.at(group_.rank());
  for (;;) {
    const std::vector<std::uint64_t> sizes = gather(own, word);
    std::int64_t first = 0;
    std::memcpy(&first, gathered_.data() + sizeof(std::uint64_t), sizeof(first));
    const std::uint64_t largest = *std::max_element(sizes.begin(), sizes.end());
    const std::size_t slot =
        (static_cast<std::size_t>(largest) + kHeadBytes + kSlotStep - 1) / kSlotStep * kSlotStep;
    if (slot * sizes.size() > kAllLimit) {
      slot_ = kHeadBytes;
      trade_with_buddy(commit, sizes);
      return first;
    }
    if (slot <= slot_) {
      keep_all(commit, sizes);
      return first;
    }
    slot_ = slot;  // From now on, for parts change little.
  }
}

void PartExchange::keep_all(CommittedState& commit, const std::vector<std::uint64_t>& sizes) {
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    if (static_cast<Rank>(rank) == group_.rank()) continue;
    Part& part = commit.parts[static_cast<Rank>(rank)];
    const std::byte* begin = gathered_.data() + rank * slot_ + kHeadBytes;
    part.bytes.assign(begin, begin + sizes[rank]);
    part.there = true;
  }
}

void PartExchange::trade_with_buddy(CommittedState& commit,
                                    const std::vector<std::uint64_t>& sizes) {
  std::vector<WorkPtr> works;
  std::vector<Part*> coming;
  try {
    for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
      if (buddies_[rank] != group_.rank()) continue;
      Part& part = commit.parts[static_cast<Rank>(rank)];
      part.bytes.resize(sizes[rank]);
      coming.push_back(&part);
      works.push_back(group_.recv(bytes_of(part.bytes.data(), part.bytes.size()),
                                  static_cast<Rank>(rank), kPartTag, tagged(kCommitTag)));
    }
    Part& own = commit.parts.at(group_.rank());
    works.push_back(group_.send(bytes_of(own.bytes.data(), own.bytes.size()),
                                buddies_[static_cast<std::size_t>(group_.rank())], kPartTag,
                                tagged(kCommitTag)));
    for (const WorkPtr& work : works) work->wait();
  } catch (...) {
    for (WorkPtr& work : works) wait_quietly(work);
    throw;
  }
  for (Part* part : coming) part->there = true;
  // A rank may overwrite the previous commit only when this one is complete.
  group_.barrier(tagged(kCommitTag))->wait();
}

}  // namespace ddp::elastic
