#include "launcher/trace/trace_summary.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_text.h"

namespace ddp::trace {
namespace {

using nlohmann::json;

// What costs the others less of a step is not said.
constexpr double kWorthSaying = 0.03;
// A rank that they wait for so much more than for any other is named.
constexpr double kClearly = 2;

// In the order of time, and without what lies in several: spans of a row may nest.
std::vector<Interval> joined(std::vector<Interval> spans) {
  std::sort(spans.begin(), spans.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> all;
  for (const Interval& span : spans) {
    if (all.empty() || span.begin > all.back().end) {
      all.push_back(span);
    } else {
      all.back().end = std::max(all.back().end, span.end);
    }
  }
  return all;
}

// What lies in both; each list is in order, and its intervals do not overlap.
std::vector<Interval> common(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::vector<Interval> both;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Interval part{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (part.begin < part.end) both.push_back(part);
    if (a[i].end < b[j].end) {
      ++i;
    } else {
      ++j;
    }
  }
  return both;
}

double length(const std::vector<Interval>& spans) {
  double sum = 0;
  for (const Interval& span : spans) sum += span.end - span.begin;
  return sum;
}

// How long the spans took within steps, without what was waited in them.
double length_without_waits(const std::vector<Interval>& spans, const std::vector<Interval>& steps,
                            const std::vector<Interval>& waits) {
  const std::vector<Interval> within = common(joined(spans), steps);
  return length(within) - length(common(within, waits));
}

using OperationId = std::tuple<int, std::string, std::int64_t>;
struct Arrival {
  double at = 0;
  int rank = 0;
};

OperationId id_of(const Taken& operation) {
  return {operation.round, operation.group, operation.sequence};
}

// Who has come last to each operation, and when.
std::map<OperationId, Arrival> last_arrivals(const std::map<int, RankTrace>& ranks) {
  std::map<OperationId, Arrival> last;
  for (const auto& [rank, trace] : ranks) {
    for (const Taken& operation : trace.operations) {
      Arrival& arrival =
          last.try_emplace(id_of(operation), Arrival{operation.issued, rank}).first->second;
      if (operation.issued > arrival.at) arrival = {operation.issued, rank};
    }
  }
  return last;
}

// Divides waits among the operations that ran in them, both in their order: until the last rank has
// come, the rank waits for that one; then bytes move.
void divide(const std::vector<Interval>& waits, int rank, const std::vector<Taken>& operations,
            const std::map<OperationId, Arrival>& last, RankSummary& summary) {
  std::size_t next = 0;
  for (const Interval& wait : waits) {
    double at = wait.begin;
    while (next < operations.size() && operations[next].ran.end <= wait.begin) ++next;
    for (std::size_t i = next; i < operations.size() && operations[i].ran.begin < wait.end; ++i) {
      const Taken& operation = operations[i];
      if (operation.ran.end <= at) continue;
      const Arrival& arrival = last.at(id_of(operation));
      const double end = std::min(operation.ran.end, wait.end);
      // A group that was made anew counts its operations anew, and nobody comes after the end.
      const bool is_of_another = arrival.at > operation.ran.end;
      if (arrival.rank != rank && !is_of_another) {
        const double came = std::clamp(arrival.at, at, end);
        summary.waiting += came - at;
        summary.waiting_for[arrival.rank] += came - at;
        at = came;
      }
      summary.moving += end - at;
      at = end;
    }
    summary.moving += std::max(0.0, wait.end - at);
  }
}

std::string percent_of(double part, double whole) {
  return fmt::format("{:7.2f} {:3.0f}%", part / 1'000, whole > 0 ? 100 * part / whole : 0);
}

// `cost`: how long all ranks together wait for each, in a step.
std::string who_is_late(const std::map<int, double>& cost, std::size_t ranks, double slowest) {
  std::vector<std::pair<double, int>> order;
  for (const auto& [rank, time] : cost) order.emplace_back(time, rank);
  std::sort(order.rbegin(), order.rend());
  const auto others = static_cast<double>(std::max<std::size_t>(ranks, 2) - 1);
  if (order.empty() || order[0].first / others < kWorthSaying * slowest) return {};
  if (order.size() > 1 && order[0].first < kClearly * order[1].first)
    return "They wait now for this rank, now for that.\n";
  return fmt::format("The others wait for rank {}: {:.2f} ms of each step, {:.0f}%.\n",
                     order[0].second, order[0].first / others / 1'000,
                     100 * order[0].first / others / slowest);
}

}  // namespace

void TraceEventsReader::take(std::string_view text) {
  lines_.feed(text, [this](std::string_view line) {
    try {
      take_line(line);
    } catch (const json::exception&) {
      // Of another program, whose fields are of other types.
    }
  });
}

void TraceEventsReader::take_line(std::string_view line) {
  line.remove_suffix(1);  // The newline.
  if (line.ends_with(',')) line.remove_suffix(1);
  const json event = parse_json_or_discard(line);
  if (!event.is_object() || event.value("ph", "") != "X") return;
  const auto details = event.find("args");
  if (details == event.end() || !details->contains("rank")) return;
  const Interval span{event.value("ts", 0.0), event.value("ts", 0.0) + event.value("dur", 0.0)};
  RankTrace& rank = ranks_[details->value("rank", 0)];
  const std::string kind = event.value("cat", "");
  if (kind == "step") rank.steps.push_back(span);
  if (kind == "wait") rank.waits.push_back(span);
  if (kind == "input") rank.inputs.push_back(span);
  if (kind == "checkpoint") rank.checkpoints.push_back(span);
  // Beyond the groups that have names, ranks count their groups differently.
  if (kind != "collective" || details->value("group", "").starts_with("group ")) return;
  rank.operations.push_back({details->value("round", 0), details->value("group", ""),
                             details->value("sequence", std::int64_t{-1}),
                             span.begin - details->value("queued_us", 0.0), span});
}

std::map<int, RankSummary> summarize(const std::map<int, RankTrace>& ranks) {
  std::map<int, RankSummary> summaries;
  const std::map<OperationId, Arrival> last = last_arrivals(ranks);
  for (const auto& [rank, trace] : ranks) {
    if (trace.steps.empty()) continue;
    RankSummary summary{.steps = trace.steps.size()};
    std::vector<Taken> operations = trace.operations;
    std::sort(operations.begin(), operations.end(),
              [](const Taken& a, const Taken& b) { return a.ran.begin < b.ran.begin; });
    const std::vector<Interval> steps = joined(trace.steps);
    const std::vector<Interval> waits = common(joined(trace.waits), steps);
    summary.step = length(steps);
    divide(waits, rank, operations, last, summary);
    summary.input = length_without_waits(trace.inputs, steps, waits);
    summary.checkpoint = length_without_waits(trace.checkpoints, steps, waits);
    summary.compute = std::max(
        0.0, summary.step - summary.waiting - summary.moving - summary.input - summary.checkpoint);
    const auto count = static_cast<double>(summary.steps);
    for (double* sum : {&summary.step, &summary.compute, &summary.waiting, &summary.moving,
                        &summary.input, &summary.checkpoint}) {
      *sum /= count;
    }
    for (auto& [other, sum] : summary.waiting_for) sum /= count;
    summaries.emplace(rank, std::move(summary));
  }
  return summaries;
}

std::string summary_text(const std::map<int, RankSummary>& ranks) {
  if (ranks.empty()) {
    return "There is no whole step in this trace. Steps are what a program tells by progress(); "
           "ddp-train, the Trainer and run_elastic tell them.\n";
  }
  std::string text =
      "Milliseconds of a step, and share of it:\n"
      "  rank  steps      step       compute       waiting        moving         input    "
      "checkpoint\n";
  std::map<int, double> cost;
  double slowest = 0;
  for (const auto& [rank, each] : ranks) {
    fmt::format_to(std::back_inserter(text), "{:>6} {:>6} {:>9.2f}  {}  {}  {}  {}  {}\n", rank,
                   each.steps, each.step / 1'000, percent_of(each.compute, each.step),
                   percent_of(each.waiting, each.step), percent_of(each.moving, each.step),
                   percent_of(each.input, each.step), percent_of(each.checkpoint, each.step));
    slowest = std::max(slowest, each.step);
    for (const auto& [other, time] : each.waiting_for) cost[other] += time;
  }
  text +=
      "Waiting: until the last rank has come to an operation. Moving: from then on, what backward "
      "does not hide.\n";
  return text + who_is_late(cost, ranks.size(), slowest);
}

}  // namespace ddp::trace
