#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

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
  void forget_names() {
    lanes_.clear();
    ended_.clear();
  }

 private:
  int lane_number(std::string& text, const Place& place, const std::string& lane);

  std::map<Rank, std::map<std::string, int>> lanes_;  // Those that have been named.
  // When the last operation of a rank and a group ended.
  std::map<std::pair<Rank, std::string>, std::int64_t> ended_;
};

}  // namespace ddp::agent
