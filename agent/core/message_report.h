#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/wire/flight_ring.h"

namespace ddp::agent {

// Says which messages the ranks of a node were waiting for at a moment (CLOCK_MONOTONIC), and what
// is known of the other side. There is one sentence for each rank, peer and direction, in the order
// of ranks. If a rank waits for several messages, its sentence names the first. Nothing is known of
// peers on other nodes. Pure.
//
//   rank 1 has waited 2.0 s in recv from rank 0, tag 7, 4 KiB; rank 0 has sent it nothing
//   rank 1 has waited 2.0 s in recv from rank 0, tag 7, 4 KiB (and 2 more); rank 0 last sent it
//   tag 6, 4 KiB 2.1 s ago
//   in group 0.0 of ranks 1,3 of world: rank 3 has waited 2.0 s in send to rank 1, tag 0, 8 MiB;
//   rank 1 waits in recv from it, tag 5, 8 MiB
//
// Ranks are global ranks. A message that failed after `moment` counts as waited for.
std::vector<std::string> describe_messages(const std::vector<wire::Flight>& flights,
                                           std::int64_t moment);

bool awaits_message(const wire::Flight& flight, std::int64_t moment);

// "350 ms", "2.1 s"
std::string name_time(std::int64_t ns);

}  // namespace ddp::agent
