#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"

// Which nodes take part in a round, and in what order. Pure functions.
namespace ddp::rendezvous {

// What decides a node's place.
struct Candidate {
  NodeId node_id;
  std::string host;
  int wanted = -1;    // The group rank it asks for, or -1. No two candidates ask for the same.
  int previous = -1;  // Group rank in the previous round, or -1.
  std::uint64_t order = 0;  // Order of joining; unique.
  bool excluded = false;    // It takes part only if there are too few others.
};

// Whether host `a` comes before host `b` in natural order: node2 before node10.
bool natural_less(std::string_view a, std::string_view b);

// At most `limit` of the candidates: members of the previous round first, then those that ask for a
// place, then by order of joining; excluded ones last.
std::vector<Candidate> choose_members(std::vector<Candidate> candidates, std::size_t limit);

// The candidates by group rank. A wanted rank is granted if it is below the number of candidates.
// Then candidates keep their previous ranks where these are free. The rest fill the gaps, sorted by
// wanted rank, host and order of joining.
std::vector<Candidate> assign_group_ranks(const std::vector<Candidate>& candidates);

}  // namespace ddp::rendezvous
