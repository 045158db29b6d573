#include "launcher/page/page_document.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace ddp::page {
namespace {

// A node is behind if the one that is farthest is so much farther, in seconds of its own speed.
constexpr double kBehindSeconds = 3;

// An object with the members of a list, by the name that `key` gives them.
template <typename Key>
nlohmann::json by_key(const nlohmann::json& list, Key key) {
  nlohmann::json object = nlohmann::json::object();
  for (const nlohmann::json& member : list) object[key(member)] = member;
  return object;
}

std::string number(const nlohmann::json& object, const char* field) {
  return fmt::format("{}", object.at(field).get<std::int64_t>());
}

// How many intervals usually lie between a point of a curve and the next: more than one where steps
// take longer than an interval.
std::int64_t usual_gap(const nlohmann::json& points) {
  std::vector<std::int64_t> gaps{1};
  for (std::size_t i = 1; i < points.size(); ++i)
    gaps.push_back(points[i].at(0).get<std::int64_t>() - points[i - 1].at(0).get<std::int64_t>());
  const auto middle = gaps.begin() + std::ssize(gaps) / 2;
  std::ranges::nth_element(gaps, middle);
  return *middle;
}

nlohmann::json curve(const nlohmann::json& given) {
  nlohmann::json points = nlohmann::json::object();
  for (const nlohmann::json& point : given.at("points")) {
    points[fmt::format("{}", point.at(0).get<std::int64_t>())] = {point.at(1), point.at(2),
                                                                  point.at(3)};
  }
  return {{"interval_ms", given.at("interval_ms")},
          {"gap", usual_gap(given.at("points"))},
          {"points", std::move(points)}};
}

// How the node's ranks are, in a word. `exit_code`: the job's; 0 also while it goes on.
const char* kind_of(const nlohmann::json& node, std::int64_t farthest, int exit_code) {
  const std::string state = node.at("state").get<std::string>();
  if (state == "lost" || state == "awaited") return "bad";
  if (state == "stopping" || state == "ending") return "ending";
  if (state == "finished" && exit_code != 0) return "ended";
  if (state == "succeeded" || state == "finished") return "done";
  if (state != "in_round") return "idle";
  const auto step = node.at("step").get<std::int64_t>();
  const double speed = node.value("steps_per_second", 0.0);
  const bool is_behind =
      step >= 0 && speed > 0 && static_cast<double>(farthest - step) / speed >= kBehindSeconds;
  return is_behind ? "behind" : "good";
}

void add_kinds(nlohmann::json& job) {
  std::int64_t farthest = -1;
  for (const nlohmann::json& node : job.at("nodes"))
    farthest = std::max(farthest, node.at("step").get<std::int64_t>());
  const int exit_code = job.value("exit_code", 0);
  for (nlohmann::json& node : job.at("nodes")) node["kind"] = kind_of(node, farthest, exit_code);
}

void add_status(nlohmann::json& job) {
  add_kinds(job);
  std::size_t place = 0;
  for (nlohmann::json& node : job.at("nodes")) node["place"] = place++;
  job["nodes"] = by_key(job.at("nodes"), [](const auto& node) {
    return node.at("node_id").template get<std::string>();
  });
  if (job.contains("late"))
    job["late"] = by_key(job.at("late"), [](const auto& late) { return number(late, "rank"); });
}

void add_history(nlohmann::json& job, const nlohmann::json& history) {
  job["elapsed_ms"] = history.at("elapsed_ms");
  job["forgotten_rounds"] = history.at("forgotten_rounds");
  job["rounds"] =
      by_key(history.at("rounds"), [](const auto& round) { return number(round, "round"); });
  job["checkpoints"] = by_key(history.at("checkpoints"), [](const auto& checkpoint) {
    return number(checkpoint, "round") + "/" + number(checkpoint, "step");
  });
  for (const auto& [name, given] : history.at("curves").items()) job["curves"][name] = curve(given);
}

}  // namespace

nlohmann::json page_document(const nlohmann::json& status, const nlohmann::json& history) {
  nlohmann::json jobs = nlohmann::json::object();
  for (const nlohmann::json& given : status) {
    nlohmann::json job = given;
    add_status(job);
    jobs[given.at("job_id").get<std::string>()] = std::move(job);
  }
  for (const nlohmann::json& given : history) {
    const auto job = jobs.find(given.at("job_id").get<std::string>());
    if (job != jobs.end()) add_history(*job, given);
  }
  return {{"jobs", std::move(jobs)}};
}

void end_jobs(nlohmann::json& document, int exit_code, const std::string& summary) {
  for (nlohmann::json& job : document.at("jobs")) {
    if (job.at("state") == "finished") continue;
    job["state"] = "finished";
    job["exit_code"] = exit_code;
    job["summary"] = summary;
    job.erase("waiting_for");
    for (nlohmann::json& node : job.at("nodes")) {
      if (node.at("state") == "in_round") node["state"] = "finished";
    }
    add_kinds(job);
    if (!job.contains("rounds")) continue;
    for (nlohmann::json& round : job["rounds"]) {
      if (round.contains("ended_ms")) continue;
      round["ended_ms"] = job.at("elapsed_ms");
      round["end"] = summary;
    }
  }
}

}  // namespace ddp::page
