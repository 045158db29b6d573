#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "common/base/ids.h"
#include "common/wire/trace_ring.h"

namespace ddp::agent {

// Writes what the ranks of a node did in Chrome's trace format, which ui.perfetto.dev reads ("Trace
// Event Format"): a rank is a process, and a lane is a thread of it. Pure.
class TraceText {
 public:
  struct Place {
    Rank rank = 0;
    Round round = 0;
    std::string_view host;
    std::string_view group;  // Of an operation or a message.
  };

  // Appends the span as one event and ",\n". Before the first one of a rank or a lane comes its
  // name. `shift_ns` is added to its times. Operations of a group come in the order of their ends.
  void append(std::string& text, const Place& place, const wire::TraceSpan& span,
              std::int64_t shift_ns);
  // Somebody reads who has not seen the names.
  void forget_names() { ranks_.clear(); }

 private:
  // A row that has been named.
  struct Lane {
    std::string fields;         // What all its events say: process, thread and category.
    std::int64_t ended_ns = 0;  // Of a group: when its last operation ended.
  };
  using Lanes = std::map<std::string, Lane, std::less<>>;
  struct RankLanes {
    Lanes groups;  // By the names of the groups.
    Lanes others;  // By the spans' lanes.
    std::size_t size() const { return groups.size() + others.size(); }
  };

  Lane& lane_of_group(std::string& text, const Place& place);
  Lane& lane_called(std::string& text, const Place& place, std::string_view name);
  Lane make_lane(std::string& text, const Place& place, RankLanes& lanes, std::string_view name,
                 std::string_view kind);

  std::map<Rank, RankLanes> ranks_;
};

}  // namespace ddp::agent
