#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/wire/flight_ring.h"

namespace ddp::agent {

// Says what the ranks of a node were waiting for when their round failed. There is one sentence for
// each group in which a rank waits, the world first. Then there is one for each rank and peer with
// a message between them that is waited for (message_report.h). Pure.
//
//   ranks 0,2-3 have waited 2.1 s in all_reduce #41 (bucket 3); rank 1 has not issued it: its last
//   operation was broadcast #40, done 2.1 s ago
//   rank 1 has waited 2.0 s in recv from rank 0, tag 7, 4 KiB; rank 0 has sent it nothing
//
// Groups of several ranks are the same if their names are. now_ns: CLOCK_MONOTONIC. If operations
// failed, the sentences describe the moment when the first of them failed, and times refer to it.
std::vector<std::string> describe_flights(const std::vector<wire::Flight>& flights,
                                          std::int64_t now_ns);

}  // namespace ddp::agent
