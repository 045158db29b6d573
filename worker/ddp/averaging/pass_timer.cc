#include "worker/ddp/averaging/pass_timer.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "worker/runtime/trace.h"

namespace ddp {
namespace {

constexpr std::uint64_t kAlwaysSampled = 10;

std::int64_t nanoseconds(TimePoint begin, TimePoint end) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin).count();
}

bool is_set(TimePoint time) { return time != TimePoint(); }

}  // namespace

void PassTimer::set_rate(int rate) {
  if (rate < 1) {
    throw std::invalid_argument(
        fmt::format("the sample rate is one in {} iterations; it must be at least 1", rate));
  }
  rate_ = rate;
}

PassTimes PassTimer::average() const {
  PassTimes result = sum_;
  const auto count = static_cast<std::int64_t>(std::max<std::uint64_t>(sampled_, 1));
  for (std::int64_t* value : {&result.forward_compute, &result.backward_compute,
                              &result.backward_comm, &result.backward_comm_overlap}) {
    *value /= count;
  }
  return result;
}

void PassTimer::begin_forward() {
  const std::uint64_t iteration = iterations_++;
  is_traced_ = runtime::is_traced();
  is_on_ = is_traced_ || iteration < kAlwaysSampled ||
           iteration % static_cast<std::uint64_t>(rate_) == 0;
  in_backward_ = false;
  if (is_on_) forward_begin_ = Clock::now();
}

void PassTimer::end_forward() {
  if (!is_on_) return;
  forward_end_ = Clock::now();
  if (is_traced_) runtime::trace_span("compute", "forward", forward_begin_, forward_end_);
}

void PassTimer::begin_backward(std::size_t pieces) {
  if (!is_on_ || std::exchange(in_backward_, true)) return;
  pieces_.assign(pieces, {});
  backward_begin_ = Clock::now();
  compute_end_ = {};
}

void PassTimer::gradient(std::size_t piece) {
  if (is_taking() && !is_set(pieces_[piece].first)) pieces_[piece].first = Clock::now();
}

void PassTimer::ready(std::size_t piece) {
  if (is_taking()) pieces_[piece].ready = Clock::now();
}

void PassTimer::launched(std::size_t piece) {
  if (is_taking()) pieces_[piece].launched = Clock::now();
}

void PassTimer::done(std::size_t piece) {
  if (is_taking() && !is_set(pieces_[piece].done)) pieces_[piece].done = Clock::now();
}

bool PassTimer::is_in_flight(std::size_t piece) const {
  return is_taking() && is_set(pieces_[piece].launched) && !is_set(pieces_[piece].done);
}

void PassTimer::end_compute() {
  if (is_taking()) compute_end_ = Clock::now();
}

void PassTimer::end_backward(const std::vector<std::string>& names) {
  if (!is_on_ || !std::exchange(in_backward_, false)) return;
  const TimePoint end = Clock::now();
  TimePoint comm_begin = TimePoint::max();
  TimePoint comm_end = TimePoint::min();
  for (const Piece& piece : pieces_) {
    if (!is_set(piece.launched)) continue;
    comm_begin = std::min(comm_begin, piece.launched);
    comm_end = std::max(comm_end, piece.done);
  }
  last_ = {};
  last_.forward_compute = nanoseconds(forward_begin_, forward_end_);
  last_.backward_compute = nanoseconds(backward_begin_, compute_end_);
  if (comm_begin < comm_end) {
    last_.backward_comm = nanoseconds(comm_begin, comm_end);
    last_.backward_comm_overlap =
        std::max<std::int64_t>(0, nanoseconds(comm_begin, std::min(comm_end, compute_end_)));
  }
  ++sampled_;
  sum_.forward_compute += last_.forward_compute;
  sum_.backward_compute += last_.backward_compute;
  sum_.backward_comm += last_.backward_comm;
  sum_.backward_comm_overlap += last_.backward_comm_overlap;
  if (is_traced_) trace_backward(names, end);
}

void PassTimer::trace_backward(const std::vector<std::string>& names, TimePoint end) const {
  runtime::trace_span("compute", "backward", backward_begin_, compute_end_);
  runtime::trace_span("reducer", "wait for buckets", compute_end_, end);
  for (std::size_t index = 0; index < pieces_.size(); ++index) {
    const Piece& piece = pieces_[index];
    const std::size_t of_parameters = names[index].find(" (");
    const std::string lane = names[index].substr(0, of_parameters);
    const std::string parameters =
        of_parameters == std::string::npos ? "" : names[index].substr(of_parameters);
    const auto add = [&](const char* what, TimePoint from, TimePoint to) {
      if (is_set(from) && is_set(to) && from <= to) {
        runtime::trace_span(lane, fmt::format("{}{}", what, parameters), from, to,
                            static_cast<std::int64_t>(index));
      }
    };
    add("fill", piece.first, piece.ready);
    add("queue", piece.ready, piece.launched);
    add("reduce", piece.launched, piece.done);
  }
}

}  // namespace ddp
