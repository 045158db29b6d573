#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/wire/flight_recorder.h"

namespace ddp::agent {

// What the ranks of a node were waiting for when their round failed: a sentence for each group in
// which somebody waits, the world first; then one for each rank and peer between which a message is
// waited for (message_report.h). Pure.
//
//   ranks 0,2-3 wait in all_reduce #41 (bucket 3) since 2.1 s; rank 1 has not issued it: its last
//   operation was broadcast #40, done 2.1 s ago
//   rank 1 waits in recv from rank 0, tag 7, 4 KiB since 2.0 s; rank 0 has sent it nothing
//
// Groups of several ranks are the same if their names are. now_ns: CLOCK_MONOTONIC; operations that
// failed show how things stood when the first of them did, which is then what times refer to.
std::vector<std::string> describe_flights(const std::vector<wire::Flight>& flights,
                                          std::int64_t now_ns);

}  // namespace ddp::agent
