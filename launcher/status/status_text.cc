// The page of GET /status as people read it.
#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/count_text.h"
#include "common/base/duration_text.h"
#include "common/base/json_text.h"
#include "common/terminal/terminal.h"
#include "launcher/status/field_text.h"
#include "launcher/status/status_command.h"

namespace ddp::status {
namespace {

using nlohmann::json;
using Row = std::vector<std::string>;

// A dash stands for an unknown value.
std::string number(const json& object, const char* field) {
  const auto found = object.find(field);
  return found == object.end() ? "-" : fmt::format("{:.4g}", found->get<double>());
}

std::string ranks(const json& node) {
  const auto found = node.find("ranks");
  if (found == node.end()) return "-";
  const int first = found->at(0).get<int>();
  const int last = found->at(1).get<int>();
  return first == last ? std::to_string(first) : fmt::format("{}-{}", first, last);
}

std::string step_text(const json& node) {
  const auto step = node.at("step").get<std::int64_t>();
  if (step < 0) return "-";
  if (!node.contains("total_steps")) return std::to_string(step);
  return fmt::format("{}/{}", step, node["total_steps"].get<std::int64_t>());
}

Row node_row(const json& node) {
  return {node.contains("group_rank") ? std::to_string(node["group_rank"].get<int>()) : "-",
          field_text(node, "host"),
          field_text(node, "address"),
          ranks(node),
          field_text(node, "state"),
          step_text(node),
          number(node, "steps_per_second"),
          node.contains("eta_seconds") ? duration_text(node["eta_seconds"].get<double>()) : "-",
          number(node, "samples_per_second"),
          node.contains("loss_is") ? field_text(node, "loss_is") : number(node, "loss"),
          node.contains("silent_ms")
              ? fmt::format("{:.1f} s", node["silent_ms"].get<double>() / 1'000)
              : "-"};
}

// Columns are as wide as their longest entry, with two spaces between them.
std::string table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += fmt::format("  {:<{}}", row[i], widths[i]);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string heading(const json& job) {
  const std::string program = field_text(job, "program");
  std::string out =
      fmt::format("job {}{}: {}", field_text(job, "job_id"),
                  program.empty() ? "" : fmt::format(" ({})", program), field_text(job, "state"));
  if (const auto round = job.at("round").get<std::int64_t>(); round >= 0) {
    out += fmt::format(", round {}", round);
  }
  if (const auto world = job.at("world_size").get<std::int64_t>(); world > 0) {
    out += ", " + count_text(world, "worker");
  }
  const auto least = job.at("min_nodes").get<std::int64_t>();
  const auto most = job.at("max_nodes").get<std::int64_t>();
  out += least == most ? fmt::format(", {}", count_text(most, "node"))
                       : fmt::format(", {} to {} nodes", least, most);
  return out + fmt::format(", {} of {} restarts used\n", job.at("restarts").get<std::int64_t>(),
                           job.at("max_restarts").get<std::int64_t>());
}

std::string late_line(const json& late) {
  return fmt::format(
      "  late: rank {} ({}) computes {:.4g} ms a step, the others {:.4g} ms (median), for {}\n",
      late.at("rank").get<int>(), field_text(late, "host"), late.at("computes_ms").get<double>(),
      late.at("others_ms").get<double>(), duration_text(late.at("since_ms").get<double>() / 1'000));
}

std::string job_text(const json& job) {
  std::string out = heading(job);
  if (job.contains("waiting_for")) {
    out += fmt::format("  waiting for: {}\n", field_text(job, "waiting_for"));
  }
  if (const auto failure = job.find("first_failure"); failure != job.end()) {
    out += fmt::format("  first failure of round {}: {}\n",
                       failure->at("round").get<std::int64_t>(), field_text(*failure, "text"));
    if (failure->contains("log_path")) {
      out += fmt::format("  its log: {}\n", field_text(*failure, "log_path"));
    }
  }
  if (const auto all = job.find("late"); all != job.end()) {
    for (const json& late : *all) out += late_line(late);
  }
  for (const json& node : job.at("nodes")) {
    for (const json& wait : node.value("waits", json::array()))
      out += fmt::format("  on {}: {}\n", field_text(node, "host"),
                         terminal::harmless(wait.get<std::string>()));
  }
  for (const json& node : job.value("left_out", json::array())) {
    out +=
        fmt::format("  left out: {}: {}\n", field_text(node, "host"), field_text(node, "reason"));
  }
  if (job.contains("exit_code")) {
    out += fmt::format("  over with status {}: {}\n", job["exit_code"].get<int>(),
                       field_text(job, "summary"));
  }
  const json& nodes = job.at("nodes");
  if (nodes.empty()) return out;
  std::vector<Row> rows{{"NODE", "HOST", "ADDRESS", "RANKS", "STATE", "STEP", "STEP/S", "ETA",
                         "SAMPLES/S", "LOSS", "SILENT"}};
  for (const json& node : nodes) rows.push_back(node_row(node));
  return out + table(rows);
}

// Connections that were not let in, by the reasons of /metrics.
std::string refused_text(const json& status) {
  std::string text;
  const auto refused = status.find("refused");
  if (refused == status.end()) return text;
  for (const auto& [reason, count] : refused->items()) {
    text += fmt::format("{} {} {}", text.empty() ? "refused:" : ",", count.get<std::int64_t>(),
                        terminal::harmless(reason));
  }
  return text.empty() ? text : text + "\n";
}

}  // namespace

Result<std::string> status_text(std::string_view page) {
  try {
    const json status = parse_json(page);
    std::string out;
    for (const json& job : status.at("jobs")) out += job_text(job) + "\n";
    if (out.empty()) out = "no job has joined yet\n\n";
    const json& store = status.at("store");
    out += fmt::format("store: {}, {} bytes, {} ({} wait), {}; {} in all\n",
                       count_text(store.at("keys").get<std::int64_t>(), "key"),
                       store.at("bytes").get<std::int64_t>(),
                       count_text(store.at("connections").get<std::int64_t>(), "client"),
                       store.at("waits").get<std::int64_t>(),
                       count_text(store.at("requests").get<std::int64_t>(), "request"),
                       count_text(status.at("connections").get<std::int64_t>(), "connection"));
    return out + refused_text(status);
  } catch (const json::exception& error) {
    return make_error(Errc::kProtocol, "its answer is not the status of jobs ({})", error.what());
  }
}

}  // namespace ddp::status
