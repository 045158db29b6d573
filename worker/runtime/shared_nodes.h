#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/runtime/machine_name.h"

namespace ddp::runtime {

// What a rank shows to the others of a group that is being made.
struct MeetingCard {
  MachineName machine;
  std::string agent_memory;  // The name of the memory that an agent gave it; empty: none.
  std::string family;        // Names the groups that share its memory and watch; empty: none.
  int region = 0;            // Its region in that memory,
  std::uint64_t head = 0;    // and where its head for the new group lies in it.
};

std::string to_line(const MeetingCard& card);
// Nothing if the line is not one of to_line().
bool read_card(const std::string& line, MeetingCard& card);

// How many ranks each node has, if neighbouring ranks that can share memory form a node. `cards`:
// by rank.
std::vector<int> node_sizes_of(const std::vector<MeetingCard>& cards);

// For people: why ranks of one machine are not on one node. Empty if all of them are.
std::string why_apart(const std::vector<MeetingCard>& cards);

// The family that all cards name; empty if they differ.
std::string common_family(const std::vector<MeetingCard>& cards);

}  // namespace ddp::runtime
