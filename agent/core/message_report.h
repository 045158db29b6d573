#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/wire/flight_recorder.h"

namespace ddp::agent {

// Which messages the ranks of a node were waiting for at a moment (CLOCK_MONOTONIC), and what is
// known of the other side: a sentence for each rank, peer and direction, in the order of ranks. Of
// several messages the first counts. Peers on other nodes are not known. Pure.
//
//   rank 1 waits in recv from rank 0, tag 7, 4 KiB since 2.0 s; rank 0 has sent it nothing
//   rank 1 waits in recv from rank 0, tag 7, 4 KiB (and 2 more) since 2.0 s; rank 0 last sent it
//   tag 6, 4 KiB 2.1 s ago in group 0.0 of ranks 1,3 of world: rank 3 waits in send to rank 1, tag
//   0, 8 MiB since 2.0 s; rank 1 waits in recv from it, tag 5, 8 MiB
//
// Ranks are those of the world. A message that failed later was waited for.
std::vector<std::string> describe_messages(const std::vector<wire::Flight>& flights,
                                           std::int64_t moment);

bool awaits_message(const wire::Flight& flight, std::int64_t moment);

// "350 ms", "2.1 s"
std::string name_time(std::int64_t ns);

}  // namespace ddp::agent
