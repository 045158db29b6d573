#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/wire/trace_ring.h"

// How libddp records what this rank does when (trace_scope.h is for programs). Any thread may call.
// One account for the process, which is one rank.
namespace ddp::runtime {

// Whether somebody asks, as it was when a step or an operation ended last.
bool is_traced();
void trace_span(std::string_view lane, std::string_view name, TimePoint begin, TimePoint end,
                std::int64_t index = -1);

// The round's ring, which `owner` keeps alive; the one before is let go.
void trace_into(std::shared_ptr<void> owner, wire::TraceRing& ring);
// The row for a program's spans: `lane`, unless that is empty or one of libddp's own.
std::string program_lane(std::string_view lane);
// The process has left the round.
void trace_nowhere();
// The training stands at `step`, and the next step begins now. Without this call the first step of
// the round begins with the round. Each other step begins where the last one ended.
void trace_training_begins(std::int64_t step, TimePoint now);
void trace_step_ends(std::int64_t step, TimePoint now);
// The agent wants spans, as the ring says.
void note_traced();

}  // namespace ddp::runtime
