#pragma once

#include <cstdint>
#include <string>

namespace ddp {

using Rank = int;            // 0..world size - 1, of a worker, within one round.
using Round = std::int64_t;  // One agreed membership; numbered from 0, never reused within a job.
using NodeId = std::string;  // Opaque, one per ddp-run; survives the restart of its agent.

inline constexpr Round kNoRound = -1;

}  // namespace ddp
