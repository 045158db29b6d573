#include "launcher/trace/trace_summary.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace ddp::trace {
namespace {

using nlohmann::json;

// What costs the others less of a step is not said.
constexpr double kWorthSaying = 0.03;
// A rank that they wait for so much more than for any other is named.
constexpr double kClearly = 2;

double overlap(const Interval& a, const Interval& b) {
  return std::max(0.0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
}

// How long the spans took within steps, without what was waited in them.
double sum_within(const std::vector<Interval>& spans, const RankTrace& rank) {
  double sum = 0;
  for (const Interval& step : rank.steps) {
    for (const Interval& span : spans) {
      const Interval within{std::max(span.begin, step.begin), std::min(span.end, step.end)};
      sum += std::max(0.0, within.end - within.begin);
      for (const Interval& wait : rank.waits) sum -= overlap(wait, within);
    }
  }
  return sum;
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

// Divides a wait among the operations that ran in it, in their order: until the last rank has come,
// the rank waits for that one; then bytes move.
void divide(const Interval& wait, int rank, const std::vector<Taken>& operations,
            const std::map<OperationId, Arrival>& last, RankSummary& summary) {
  double at = wait.begin;
  for (const Taken& operation : operations) {
    if (operation.ran.end <= at || operation.ran.begin >= wait.end) continue;
    const Arrival& arrival = last.at(id_of(operation));
    const double end = std::min(operation.ran.end, wait.end);
    const double came = std::clamp(arrival.at, at, end);
    if (arrival.rank != rank) {
      summary.waiting += came - at;
      summary.waiting_for[arrival.rank] += came - at;
      at = came;
    }
    summary.moving += end - at;
    at = end;
  }
  summary.moving += std::max(0.0, wait.end - at);
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
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    line_ += text.substr(0, end);
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
    try {
      take_line(line_);
    } catch (const json::exception&) {
      // Of another program, whose fields are of other types.
    }
    line_.clear();
  }
}

void TraceEventsReader::take_line(std::string_view line) {
  if (line.ends_with(',')) line.remove_suffix(1);
  const json event = json::parse(line, nullptr, false);
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
  if (kind != "collective") return;
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
              [](const Taken& a, const Taken& b) { return a.ran.end < b.ran.end; });
    for (const Interval& step : trace.steps) {
      summary.step += step.end - step.begin;
      for (const Interval& wait : trace.waits) {
        const Interval within{std::max(wait.begin, step.begin), std::min(wait.end, step.end)};
        if (within.begin < within.end) divide(within, rank, operations, last, summary);
      }
    }
    summary.input = sum_within(trace.inputs, trace);
    summary.checkpoint = sum_within(trace.checkpoints, trace);
    summary.compute = std::max(
        0.0, summary.step - summary.waiting - summary.moving - summary.input - summary.checkpoint);
    const auto steps = static_cast<double>(summary.steps);
    for (double* sum : {&summary.step, &summary.compute, &summary.waiting, &summary.moving,
                        &summary.input, &summary.checkpoint}) {
      *sum /= steps;
    }
    for (auto& [other, sum] : summary.waiting_for) sum /= steps;
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
