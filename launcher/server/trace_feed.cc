#include "launcher/server/trace_feed.h"

#include <algorithm>
#include <ctime>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "common/base/monotonic_ns.h"
#include "common/process/this_process.h"

namespace ddp::server {
namespace {

using rendezvous::ConnectionId;
using rendezvous::JobHistory;

// An agent that does not answer is asked again.
constexpr Duration kPatience{2'000};
// The first questions follow at once, because an agent learns the clock by them.
constexpr std::size_t kQuick = 8;
// An agent whose ranks have used so much of their room is asked more often; less often below the
// other.
constexpr double kFull = 0.5;
constexpr double kEmpty = 0.35;
// No rank has this number.
constexpr int kJobProcess = 1'000'000;
constexpr int kRounds = 1'000'000'001;
constexpr int kEnds = 1'000'000'002;

nlohmann::json meta(int thread, const char* what, nlohmann::json value) {
  const std::string whole(what);
  const std::string field = whole.substr(whole.find('_') + 1);
  return {{"ph", "M"},
          {"pid", kJobProcess},
          {"tid", thread},
          {"name", what},
          {"args", {{field, std::move(value)}}}};
}

void append(std::string& text, const nlohmann::json& event) { text += dump_json(event) + ",\n"; }

std::string names_of(const std::string& job_id, const std::string& began) {
  std::string text;
  append(text, meta(kRounds, "process_name", fmt::format("job {}", job_id)));
  append(text, meta(kRounds, "process_labels", fmt::format("0 is {}", began)));
  append(text, meta(kRounds, "process_sort_index", 0));
  append(text, meta(kRounds, "thread_name", "rounds"));
  append(text, meta(kEnds, "thread_name", "why they ended"));
  return text;
}

std::string wall_clock() {
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr)));
}

}  // namespace

TraceFeed::TraceFeed(asio::io_context& io, Sources sources)
    : sources_(std::move(sources)), clock_(clock_name()), began_(wall_clock()), timer_(io) {}

void TraceFeed::add(const std::string& job_id, std::shared_ptr<TraceSink> sink) {
  const bool is_first = jobs_.empty();
  Job& job = jobs_[job_id];
  Reader reader{std::move(sink)};
  const JobHistory* const history = sources_.history(job_id);
  if (history != nullptr && !reader.sink->wants_the_past()) {
    for (const JobHistory::RoundRecord& round : history->rounds()) {
      if (round.ended) reader.told = round.round;
    }
  }
  job.readers.push_back(std::move(reader));
  job.has_newcomer = true;
  if (is_first) tick();
}

bool TraceFeed::is_full() const {
  std::size_t readers = 0;
  for (const auto& [job_id, job] : jobs_) readers += job.readers.size();
  return readers >= kMaxReaders;
}

void TraceFeed::tick() {
  // Its last node has left, or another daemon coordinates it.
  std::vector<std::string> gone;
  for (auto& [job_id, job] : jobs_) {
    const bool is_here = sources_.history(job_id) != nullptr;
    if (job.has_begun && !is_here) gone.push_back(job_id);
    job.has_begun = job.has_begun || is_here;
  }
  for (const std::string& job_id : gone) on_job_finished(job_id);
  for (auto& [job_id, job] : jobs_) {
    std::erase_if(job.readers, [](const Reader& reader) { return !reader.sink->is_open(); });
    for (Reader& reader : job.readers) tell_rounds(job_id, reader, false);
  }
  std::erase_if(jobs_, [](const auto& job) { return job.second.readers.empty(); });
  std::erase_if(agents_,
                [this](const auto& agent) { return !jobs_.contains(agent.second.job_id); });
  for (auto& [job_id, job] : jobs_)
    ask_agents(job_id, std::exchange(job.has_newcomer, false), false);
  if (!jobs_.empty()) timer_.after(kShortest, [this] { tick(); });
}

void TraceFeed::on_round_begins(const std::string& job_id) {
  if (jobs_.contains(job_id)) ask_agents(job_id, false, true);
}

// Those whose turn it is, or all of them `at_once`.
void TraceFeed::ask_agents(const std::string& job_id, bool names, bool at_once) {
  const std::vector<ConnectionId> here = sources_.agents(job_id);
  std::erase_if(agents_, [&](const auto& agent) {
    return agent.second.job_id == job_id &&
           std::find(here.begin(), here.end(), agent.first) == here.end();
  });
  const TimePoint now = Clock::now();
  for (const ConnectionId id : here) {
    Agent& agent = agents_[id];
    agent.job_id = job_id;
    if (at_once) agent.interval = kShortest;  // A round that begins may be quicker.
    const Duration pause = agent.is_asked ? kPatience : agent.interval;
    if (names || at_once || now - agent.asked_at >= pause) ask(id, agent, names);
  }
}

void TraceFeed::ask(ConnectionId id, Agent& agent, bool names) {
  agent.is_asked = true;
  agent.asked_at = Clock::now();
  sources_.ask(id, {.clock = clock_,
                    .zero_ns = monotonic_ns(zero_),
                    .answered_ns = std::exchange(agent.answered_ns, 0),
                    .received_ns = agent.received_ns,
                    .sent_ns = monotonic_ns(Clock::now()),
                    .names = names || agent.answers == 0});
}

void TraceFeed::on_events(ConnectionId from, const wire::TraceEvents& events) {
  const auto found = agents_.find(from);
  if (found == agents_.end()) return;
  Agent& agent = found->second;
  agent.received_ns = monotonic_ns(Clock::now());
  agent.answered_ns = events.sent_ns;
  agent.is_asked = false;
  ++agent.answers;
  if (events.fill > kFull) agent.interval = kShortest;
  // Ranks that do nothing yet may begin quickly.
  if (events.fill > 0 && events.fill < kEmpty)
    agent.interval = std::min(2 * agent.interval, kLongest);
  const auto job = jobs_.find(agent.job_id);
  if (job == jobs_.end()) return;
  std::string text = events.events;
  if (events.lost > 0) {
    append(text, {{"ph", "i"},
                  {"s", "g"},
                  {"pid", kJobProcess},
                  {"tid", kEnds},
                  {"cat", "trace"},
                  {"name", fmt::format("{} spans were not read in time", events.lost)},
                  {"ts", static_cast<double>(ns_since_zero(Clock::now())) / 1'000}});
  }
  for (Reader& reader : job->second.readers) give(agent.job_id, reader, text);
  if (events.more || agent.answers < kQuick) ask(from, agent, false);
}

void TraceFeed::give(const std::string& job_id, Reader& reader, std::string_view events) const {
  if (events.empty() || !reader.sink->is_open()) return;
  if (!std::exchange(reader.has_names, true)) reader.sink->write(names_of(job_id, began_));
  const JobHistory* const history = sources_.history(job_id);
  const int ranks =
      history != nullptr && !history->rounds().empty() ? history->rounds().back().world_size : 0;
  if (std::exchange(reader.ranks, ranks) != ranks) {
    std::string text;
    append(text, {{"ph", "M"},
                  {"pid", kJobProcess},
                  {"tid", kRounds},
                  {"name", "ranks"},
                  {"args", {{"count", ranks}}}});
    reader.sink->write(text);
  }
  reader.sink->write(events);
}

std::int64_t TraceFeed::ns_since_zero(TimePoint time) const {
  return monotonic_ns(time) - monotonic_ns(zero_);
}

// The rounds that have ended since; all: also the one that runs.
void TraceFeed::tell_rounds(const std::string& job_id, Reader& reader, bool all) {
  const JobHistory* const history = sources_.history(job_id);
  if (history == nullptr) return;
  const auto at = [&](Duration since_began) {
    return static_cast<double>(ns_since_zero(history->began() + since_began)) / 1'000;
  };
  std::string text;
  for (const JobHistory::RoundRecord& round : history->rounds()) {
    if (round.round <= reader.told || (!round.ended && !all)) continue;
    reader.told = round.round;
    const Duration end =
        round.ended.value_or(std::chrono::duration_cast<Duration>(Clock::now() - history->began()));
    append(text, {{"ph", "X"},
                  {"pid", kJobProcess},
                  {"tid", kRounds},
                  {"cat", "round"},
                  {"name", fmt::format("round {}", round.round)},
                  {"ts", at(round.began)},
                  {"dur", static_cast<double>((end - round.began).count()) * 1'000},
                  {"args",
                   {{"round", round.round},
                    {"nodes", round.nodes},
                    {"world_size", round.world_size},
                    {"reason", round.reason},
                    {"end", round.end}}}});
    if (!round.end.empty()) {
      append(text, {{"ph", "i"},
                    {"s", "g"},
                    {"pid", kJobProcess},
                    {"tid", kEnds},
                    {"cat", "round_end"},
                    {"name", round.end},
                    {"ts", at(end)},
                    {"args", {{"round", round.round}}}});
    }
  }
  give(job_id, reader, text);
}

void TraceFeed::on_job_finished(const std::string& job_id) {
  const auto job = jobs_.extract(job_id);
  if (job.empty()) return;
  for (Reader& reader : job.mapped().readers) {
    if (!reader.sink->is_open()) continue;
    tell_rounds(job_id, reader, true);
    reader.sink->finish();
  }
}

void TraceFeed::end() {
  while (!jobs_.empty()) on_job_finished(std::string(jobs_.begin()->first));
}

}  // namespace ddp::server
