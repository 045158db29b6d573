#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"
#include "launcher/check/verdict/facts.h"

namespace ddp::check {

// Where another node of the check listens (PeerServer), as it says in the store.
struct PeerPlace {
  int node = 0;  // Group rank.
  std::string host;
  std::string address;
  int port = 0;
  std::string token;
};
std::string encode(const PeerPlace& place);
// kProtocol for other bytes.
Result<PeerPlace> decode_peer_place(std::string_view text);

// Goes to all of them, to several at a time: its name forwards and back, whether its port is
// reached (within 3 s), its clock. In the order of `places`.
std::vector<PeerFacts> meet_peers(const std::vector<PeerPlace>& places);

// Adds latency and bandwidth. The neighbour must have been reached. Takes about half a second, and
// up to 15 s on a slow link.
void measure_link(const PeerPlace& place, PeerFacts& facts);

}  // namespace ddp::check
