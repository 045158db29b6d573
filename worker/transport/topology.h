#pragma once

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/ids.h"

namespace ddp::transport {

// Where the ranks of one round run. Ranks are contiguous per node: node g holds first(g) ..
// first(g) + local_size(g) - 1.
//
// Lane k joins the ranks whose local rank is k by links between nodes. There are as many lanes as
// the smallest node has workers, so that every lane has an end on every node.
//
// A few nodes are all linked from the beginning. Of many, a node is first linked to those at a
// distance of 1, 2, 4, ... around the ring of all nodes, so that links, and the time to make them,
// grow as M log M. This is enough for rings, chains and Bruck's rounds; an operation that needs
// more makes the rest (Transport::make_all_links).
class Topology {
 public:
  // Invariants: every entry of node_sizes is at least 1; 0 <= rank < their sum.
  Topology(std::vector<int> node_sizes, Rank rank) : sizes_(std::move(node_sizes)), rank_(rank) {
    int first = 0;
    for (int size : sizes_) {
      first_.push_back(first);
      first += size;
    }
    world_size_ = first;
    node_ = node_of(rank_);
  }

  Rank rank() const { return rank_; }
  int world_size() const { return world_size_; }
  int node() const { return node_; }
  int nodes() const { return static_cast<int>(sizes_.size()); }
  int local_rank() const { return rank_ - first_[index(node_)]; }
  int local_size() const { return sizes_[index(node_)]; }
  int local_size(int node) const { return sizes_[index(node)]; }
  Rank first(int node) const { return first_[index(node)]; }
  Rank global(int local) const { return first_[index(node_)] + local; }
  const std::vector<int>& node_sizes() const { return sizes_; }

  int node_of(Rank rank) const {
    const auto after = std::upper_bound(first_.begin(), first_.end(), rank);
    return static_cast<int>(after - first_.begin()) - 1;
  }
  int lanes() const { return *std::min_element(sizes_.begin(), sizes_.end()); }
  bool has_lane() const { return local_rank() < lanes(); }
  static constexpr int kFewNodes = 16;  // Up to here all are linked from the beginning.
  // How far another node is from this one around the ring of all nodes, the shorter way.
  int distance_to(int node) const {
    const int forward = (node - node_ + nodes()) % nodes();
    return std::min(forward, nodes() - forward);
  }
  // Whether a round begins with a link to this other node; the same at both ends.
  bool begins_linked(int node) const {
    const auto is_power_of_two = [](int number) { return (number & (number - 1)) == 0; };
    const int distance = distance_to(node);
    return nodes() <= kFewNodes || is_power_of_two(distance) || is_power_of_two(nodes() - distance);
  }
  // Whether heartbeats go to this other node. If any nodes fall silent, one of them has a neighbour
  // that has not, which tells everybody.
  bool beats_to(int node) const { return !beats_in_ring() || distance_to(node) == 1; }
  bool beats_in_ring() const { return nodes() > kFewNodes; }
  // The rank of this rank's lane on a node. -1 if the node is this rank's own or does not exist, or
  // if this rank has no lane.
  Rank lane_peer(int node) const {
    if (node < 0 || node >= nodes() || node == node_ || !has_lane()) return -1;
    return first(node) + local_rank();
  }

 private:
  static std::size_t index(int node) { return static_cast<std::size_t>(node); }

  std::vector<int> sizes_;
  std::vector<Rank> first_;
  Rank rank_ = 0;
  int world_size_ = 0;
  int node_ = 0;
};

}  // namespace ddp::transport
