#include "worker/ddp/trainer/logger.h"

#include <cmath>
#include <sstream>
#include <stdexcept>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "common/process/write_file.h"

namespace ddp {
namespace {

nlohmann::ordered_json number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nullptr;
}

[[noreturn]] void fail(const std::filesystem::path& path) {
  throw std::runtime_error(fmt::format("metrics cannot be written to {}", path.string()));
}

}  // namespace

// Leaves the lines up to that step. The last one may be half of one.
void JsonLogger::keep_lines(std::int64_t step) {
  std::ostringstream old;
  old << std::ifstream(path_, std::ios::binary).rdbuf();
  std::istringstream file(old.str());
  std::string kept;
  for (std::string line; step > 0 && std::getline(file, line) && !file.eof();) {
    const auto values = parse_json_or_discard(line);
    if (!values.is_object()) continue;
    const std::int64_t of = values.value("step", step + 1);
    if (of > step) continue;
    kept += line + '\n';
    if (values.contains("epoch")) continue;
    for (const auto& [name, value] : values.items()) newest_[name] = of;
  }
  // Replaced as a whole: this process may be killed meanwhile.
  if (kept != old.str() && !write_file(path_.string(), kept)) fail(path_);
  file_ = std::ofstream(path_, std::ios::app);
}

void JsonLogger::begin(const TrainingPlace& place) {
  newest_.clear();
  keep_lines(place.step);
  if (!file_) fail(path_);
}

void JsonLogger::log_metrics(const TrainingPlace& place, const MetricValues& values) {
  nlohmann::ordered_json line = {{"epoch", place.epoch}, {"step", place.step}};
  for (const auto& [name, value] : values) line[name] = number(value);
  write(line);
}

void JsonLogger::log_late(std::int64_t step, const std::string& name, double value) {
  const auto [newest, is_first] = newest_.try_emplace(name, step);
  if (!is_first && newest->second >= step) return;
  newest->second = step;
  write({{"step", step}, {name, number(value)}});
}

void JsonLogger::write(const nlohmann::ordered_json& line) {
  file_ << line.dump() << '\n' << std::flush;
  if (!file_) fail(path_);
}

}  // namespace ddp
