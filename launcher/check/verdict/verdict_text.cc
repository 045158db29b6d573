// Verdicts as people and programs read them.
#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/count_text.h"
#include "common/base/json_text.h"
#include "launcher/check/verdict/verdict.h"

namespace ddp::check {
namespace {

constexpr std::array<const char*, 3> kStates{"ok", "warning", "failed"};

const char* name_of(State state) { return kStates.at(static_cast<std::size_t>(state)); }

using Row = std::array<std::string, 5>;

std::string aligned(const std::vector<Row>& rows) {
  std::array<std::size_t, 5> widths{};
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

}  // namespace

bool is_fit(const std::vector<Verdict>& verdicts) {
  return std::none_of(verdicts.begin(), verdicts.end(),
                      [](const Verdict& verdict) { return verdict.state == State::kFailed; });
}

std::string what_failed(const std::vector<Verdict>& verdicts) {
  std::string text;
  for (const Verdict& verdict : verdicts) {
    if (verdict.state != State::kFailed) continue;
    text += fmt::format("{}{}: {}{}", text.empty() ? "" : "; ", verdict.thing, verdict.measured,
                        verdict.limit.empty() ? "" : fmt::format(" ({})", verdict.limit));
  }
  return text;
}

std::string table(const std::vector<Verdict>& verdicts) {
  std::vector<Row> rows{{"NODE", "CHECK", "STATE", "MEASURED", "LIMIT"}};
  std::string remedies;
  for (const Verdict& verdict : verdicts) {
    rows.push_back(
        {verdict.host, verdict.thing, name_of(verdict.state), verdict.measured, verdict.limit});
    if (verdict.state == State::kOk) continue;
    remedies += fmt::format("{} on {}: {}\n", verdict.thing, verdict.host, verdict.remedy);
  }
  if (remedies.empty()) {
    return fmt::format("{}\nAll is well: each of {} passed.\n", aligned(rows),
                       count_text(static_cast<std::int64_t>(verdicts.size()), "check"));
  }
  return aligned(rows) + "\nWhat to do:\n" + remedies;
}

std::string json_text(const std::vector<Verdict>& verdicts) {
  nlohmann::json out{{"fit", is_fit(verdicts)}, {"nodes", nlohmann::json::array()}};
  auto& nodes = out["nodes"];
  for (const Verdict& verdict : verdicts) {
    if (nodes.empty() || nodes.back()["node"] != verdict.node) {
      nodes.push_back({{"node", verdict.node},
                       {"host", verdict.host},
                       {"fit", true},
                       {"checks", nlohmann::json::array()}});
    }
    nlohmann::json& node = nodes.back();
    if (verdict.state == State::kFailed) node["fit"] = false;
    node["checks"].push_back({{"check", verdict.thing},
                              {"state", name_of(verdict.state)},
                              {"measured", verdict.measured},
                              {"limit", verdict.limit},
                              {"remedy", verdict.remedy}});
  }
  return dump_json(out, 2) + "\n";
}

}  // namespace ddp::check
