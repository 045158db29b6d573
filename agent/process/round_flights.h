#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agent/process/round_memory.h"
#include "common/wire/flight_ring.h"

// What the flight records of a round's workers say.
namespace ddp::agent {

// The worker waits for other ranks in an operation, or for a message.
bool waits_for_others(const wire::Flight& flight);
// What the workers wait for now, in sentences; none unless something has been waited for for a
// second.
std::vector<std::string> long_waits(const std::vector<wire::Flight>& flights);
// What the workers were waiting for when the round ended, in sentences; nothing if it ended well.
std::optional<std::vector<std::string>> last_waits(const RoundMemory& memory,
                                                   const std::vector<wire::Flight>& flights);

}  // namespace ddp::agent
