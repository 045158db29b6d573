#include "launcher/status/top_screen.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/count_text.h"
#include "common/base/duration_text.h"
#include "common/base/size_text.h"
#include "common/terminal/terminal.h"
#include "launcher/status/field_text.h"
#include "launcher/status/sparkline.h"

namespace ddp::status {
namespace {

using nlohmann::json;

constexpr int kCellColumns = 6;
constexpr std::size_t kRounds = 8;
constexpr std::size_t kCheckpoints = 4;
constexpr int kCurveLabel = 12;
constexpr std::array<std::pair<const char*, const char*>, 3> kCurves{
    {{"loss", "loss"}, {"samples_per_second", "samples/s"}, {"steps_per_second", "steps/s"}}};

// How a rank is: its style, its sign and the sign in ASCII. The signs are the page's.
struct Look {
  Style style;
  const char* sign;
  const char* letter;
};
std::vector<const json*> nodes_of(const json& job) {
  std::vector<const json*> nodes;
  for (const json& node : job.at("nodes")) nodes.push_back(&node);
  std::sort(nodes.begin(), nodes.end(),
            [](const json* a, const json* b) { return a->at("place") < b->at("place"); });
  return nodes;
}

// The members of an object, the one with the largest `field` first.
std::vector<const json*> newest(const json& object, const char* field, std::size_t most) {
  std::vector<const json*> all;
  for (const json& member : object) all.push_back(&member);
  std::sort(all.begin(), all.end(),
            [field](const json* a, const json* b) { return a->at(field) > b->at(field); });
  if (all.size() > most) all.resize(most);
  return all;
}

// By what the page's document calls it.
constexpr std::array<std::pair<std::string_view, Look>, 8> kLooks{{
    {"good", {Style::kGood, "", ""}},
    {"behind", {Style::kBehind, "▽", "v"}},
    {"late", {Style::kLate, "▲", "^"}},
    {"idle", {Style::kIdle, "…", "."}},
    {"ending", {Style::kEnding, "■", "="}},
    {"done", {Style::kIdle, "✓", "+"}},
    {"ended", {Style::kIdle, "□", "o"}},
    {"bad", {Style::kBad, "✕", "x"}},
}};

Look look_of(const json& job, const json& node, int rank) {
  const bool is_late = node.at("state") == "in_round" && job.contains("late") &&
                       job["late"].contains(std::to_string(rank));
  const std::string kind = is_late ? "late" : node.value("kind", "");
  const auto found = std::find_if(kLooks.begin(), kLooks.end(),
                                  [&kind](const auto& look) { return look.first == kind; });
  return found == kLooks.end() ? Look{Style::kIdle, "", ""} : found->second;
}

std::string seconds_text(double ms) {
  return ms < 1'000 ? fmt::format("{:.0f} ms", ms) : fmt::format("{:.1f} s", ms / 1'000);
}

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

// Takes the beginning of a line that fits into so many columns, up to a blank if its second half
// has one.
std::string_view take_fitting(std::string_view& line, int columns) {
  std::size_t end = 0;
  for (; end < line.size(); ++end) {
    if (begins_character(line[end]) && columns-- == 0) break;
  }
  const std::size_t blank = end < line.size() ? line.rfind(' ', end) : std::string_view::npos;
  const bool at_blank = blank != std::string_view::npos && blank >= end / 2;
  const std::string_view taken = line.substr(0, at_blank ? blank : end);
  line.remove_prefix(at_blank ? blank + 1 : end);
  return taken;
}

// Lines of at most `width` columns; at most `most` of them.
void add_wrapped(std::vector<Line>& lines, std::string_view text, int width, Style style,
                 std::size_t most) {
  for (std::size_t i = 0; i < most && !text.empty(); ++i)
    lines.push_back({{std::string(take_fitting(text, std::max(width, 1))), style}});
}

void cut(Line& line, int width) {
  for (Span& span : line) {
    int left = std::max(width, 0);
    std::size_t end = 0;
    while (end < span.text.size()) {
      std::size_t next = end + 1;
      while (next < span.text.size() &&
             (static_cast<unsigned char>(span.text[next]) & 0xC0) == 0x80)
        ++next;
      if (left == 0) break;
      --left;
      end = next;
    }
    span.text.resize(end);
    width = left;
  }
}

void add_head(std::vector<Line>& lines, const json& job, int width) {
  const std::string state = field_text(job, "state");
  const bool failed = job.value("exit_code", 0) != 0;
  Style style = Style::kIdle;
  if (state == "running") style = Style::kGood;
  if (state == "recovering" || state == "stopping") style = Style::kLate;
  if (failed) style = Style::kBad;
  lines.push_back({{field_text(job, "job_id"), Style::kBold},
                   {fmt::format("  {}  ", field_text(job, "program")), Style::kSoft},
                   {fmt::format(" {} ", failed ? "failed" : state), style}});
  std::string facts = fmt::format(
      "{} elapsed · round {} · {} · {} of {} restarts left · {}",
      duration_text(job.value("elapsed_ms", 0.0) / 1'000), job.at("round").get<int>(),
      count_text(job.at("world_size").get<int>(), "worker"),
      std::max(job.at("max_restarts").get<int>() - job.at("restarts").get<int>(), 0),
      job.at("max_restarts").get<int>(), count_text(job.at("failures").get<int>(), "failure"));
  for (const json* node : nodes_of(job)) {
    const auto step = node->at("step").get<std::int64_t>();
    if (node->value("group_rank", -1) != 0 || step < 0) continue;
    facts += fmt::format(" · step {}", step);
    if (node->contains("total_steps"))
      facts += fmt::format(" of {}", node->at("total_steps").get<std::int64_t>());
    if (node->contains("eta_seconds"))
      facts += fmt::format(" · {} left", duration_text(node->at("eta_seconds").get<double>()));
  }
  add_wrapped(lines, facts, width, Style::kPlain, 2);
  const std::string waiting = field_text(job, "waiting_for");
  for (const json* node : nodes_of(job)) {
    if (node->value("group_rank", -1) != 0 || !node->contains("loss_is")) continue;
    add_wrapped(lines, fmt::format("the loss is {}", field_text(*node, "loss_is")), width,
                Style::kBad, 1);
  }
  if (!waiting.empty()) add_wrapped(lines, "waiting: " + waiting, width, Style::kLate, 2);
  if (job.contains("summary")) add_wrapped(lines, field_text(job, "summary"), width, style, 2);
}

void add_failure(std::vector<Line>& lines, const json& job, int width) {
  const auto failure = job.find("first_failure");
  if (failure == job.end()) return;
  add_wrapped(lines,
              fmt::format("first failure of round {}: {}", failure->at("round").get<int>(),
                          field_text(*failure, "text")),
              width, Style::kBad, 3);
}

void add_curves(std::vector<Line>& lines, const json& job, const TopView& view) {
  if (!job.contains("curves")) return;
  for (const auto& [name, label] : kCurves) {
    const auto curve = job["curves"].find(name);
    if (curve == job["curves"].end() || curve->at("points").empty()) continue;
    const CurveRange range = range_of(*curve, job.value("elapsed_ms", 0.0));
    const std::string values =
        fmt::format(" {}{:.4g} ({:.4g} to {:.4g})", range.is_now ? "" : "last ", range.last,
                    range.least, range.most);
    const int width = std::max(view.width - kCurveLabel - columns_of(values), 10);
    lines.push_back({{fmt::format("{:<{}}", label, kCurveLabel), Style::kSoft},
                     {sparkline(*curve, job.value("elapsed_ms", 0.0), width, view.blocks)},
                     {values, Style::kSoft}});
  }
}

void add_grid(std::vector<Line>& lines, const json& job, const TopView& view) {
  const std::vector<Cell> cells = cells_of(job);
  Line line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (static_cast<int>(line.size() + 1) * kCellColumns > view.width) {
      lines.push_back(std::exchange(line, {}));
    }
    const json& node = job.at("nodes").at(cells[i].node_id);
    const Look look = look_of(job, node, cells[i].rank);
    const std::string name = cells[i].rank >= 0 ? std::to_string(cells[i].rank) : "-";
    const std::string text = fmt::format("{}{}", view.blocks ? look.sign : look.letter, name);
    const int pad = std::max(kCellColumns - 1 - columns_of(text), 0);
    line.push_back({std::string(static_cast<std::size_t>(pad), ' ') + text + ' ', look.style,
                    i == view.marked});
  }
  if (!line.empty()) lines.push_back(std::move(line));
  if (view.marked >= cells.size()) return;
  const Cell& cell = cells[view.marked];
  const json& node = job.at("nodes").at(cell.node_id);
  std::string state = field_text(node, "state");
  std::ranges::replace(state, '_', ' ');
  std::string detail =
      fmt::format("{} on {} ({}), {}", cell.rank >= 0 ? fmt::format("rank {}", cell.rank) : "node",
                  field_text(node, "host"), field_text(node, "address"), state);
  if (node.at("step").get<std::int64_t>() >= 0)
    detail += fmt::format(", step {}", node.at("step").get<std::int64_t>());
  const std::string number = std::to_string(cell.rank);
  if (job.contains("late") && job["late"].contains(number)) {
    const json& late = job["late"][number];
    detail += fmt::format(", late: computes {:.4g} ms a step, the others {:.4g} ms",
                          late.at("computes_ms").get<double>(), late.at("others_ms").get<double>());
  }
  add_wrapped(lines, detail, view.width, Style::kSoft, 2);
}

void add_waits(std::vector<Line>& lines, const json& job, int width) {
  for (const json* node : nodes_of(job)) {
    for (const json& wait : node->value("waits", json::array())) {
      add_wrapped(lines,
                  fmt::format("{}: {}", field_text(*node, "host"),
                              terminal::harmless(wait.get<std::string>())),
                  width, Style::kLate, 2);
    }
  }
}

void add_rounds(std::vector<Line>& lines, const json& job, int width) {
  const auto rounds = job.find("rounds");
  if (rounds == job.end() || rounds->empty()) return;
  lines.push_back({{"rounds", Style::kBold}});
  for (const json* round : newest(*rounds, "round", kRounds)) {
    std::string text = fmt::format("  {} after {}, {}", round->at("round").get<int>(),
                                   duration_text(round->at("began_ms").get<double>() / 1'000),
                                   count_text(round->at("world_size").get<int>(), "worker"));
    if (round->contains("steps")) {
      text += fmt::format(", steps {} to {}", round->at("steps").at(0).get<std::int64_t>(),
                          round->at("steps").at(1).get<std::int64_t>());
    }
    const auto next = rounds->find(std::to_string(round->at("round").get<int>() + 1));
    if (round->contains("ended_ms")) {
      text += fmt::format(": {}", field_text(*round, "end"));
      if (next != rounds->end() && next->contains("first_step_ms")) {
        text += fmt::format(" (cost {})", seconds_text(next->at("first_step_ms").get<double>() -
                                                       round->at("ended_ms").get<double>()));
      }
    } else {
      text += ": runs";
    }
    add_wrapped(lines, text, width, Style::kPlain, 2);
  }
}

void add_checkpoints(std::vector<Line>& lines, const json& job, int width) {
  const auto checkpoints = job.find("checkpoints");
  if (checkpoints == job.end() || checkpoints->empty()) return;
  lines.push_back({{"checkpoints", Style::kBold}});
  for (const json* each : newest(*checkpoints, "written_ms", kCheckpoints)) {
    const std::string error = field_text(*each, "error");
    add_wrapped(lines,
                fmt::format("  step {}: {} in {}{}", each->at("step").get<std::int64_t>(),
                            size_text(each->at("bytes").get<std::int64_t>()),
                            seconds_text(each->at("seconds").get<double>() * 1'000),
                            !error.empty()                      ? ", not written: " + error
                            : each->at("published").get<bool>() ? ""
                                                                : ", not complete"),
                width, error.empty() ? Style::kPlain : Style::kBad, 2);
  }
}

}  // namespace

int columns_of(const std::string& text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), begins_character));
}

std::vector<Line> wrapped(const std::string& text, int columns) {
  std::vector<Line> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = terminal::harmless(text.substr(begin, end - begin));
    std::string_view rest = line;
    do {
      lines.push_back({{std::string(take_fitting(rest, columns))}});
    } while (!rest.empty());
    begin = end + 1;
  }
  return lines;
}

std::vector<Cell> cells_of(const json& job) {
  std::vector<Cell> cells;
  for (const json* node : nodes_of(job)) {
    const std::string id = node->at("node_id").get<std::string>();
    const auto ranks = node->find("ranks");
    if (ranks == node->end()) {
      cells.push_back({id, -1});
      continue;
    }
    for (int rank = ranks->at(0).get<int>(); rank <= ranks->at(1).get<int>(); ++rank)
      cells.push_back({id, rank});
  }
  return cells;
}

std::vector<Line> top_screen(const json& job, const TopView& view) {
  std::vector<Line> lines;
  add_head(lines, job, view.width);
  add_failure(lines, job, view.width);
  add_curves(lines, job, view);
  lines.emplace_back();
  add_grid(lines, job, view);
  add_waits(lines, job, view.width);
  lines.emplace_back();
  add_rounds(lines, job, view.width);
  add_checkpoints(lines, job, view.width);
  for (Line& line : lines) cut(line, view.width);
  return lines;
}

}  // namespace ddp::status
