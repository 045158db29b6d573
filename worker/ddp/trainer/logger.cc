#include "worker/ddp/trainer/logger.h"

#include <cmath>
#include <stdexcept>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace ddp {
namespace {

// The lines up to that step. The last one may be half of one.
std::string kept_lines(const std::filesystem::path& path, std::int64_t step) {
  std::ifstream file(path);
  std::string kept;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const auto values = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!values.is_object() || values.value("step", step + 1) > step) continue;
    kept += line + '\n';
  }
  return kept;
}

[[noreturn]] void fail(const std::filesystem::path& path) {
  throw std::runtime_error(fmt::format("metrics cannot be written to {}", path.string()));
}

}  // namespace

void JsonLogger::begin(const TrainingPlace& place) {
  const std::string kept = place.step > 0 ? kept_lines(path_, place.step) : "";
  file_ = std::ofstream(path_, std::ios::trunc);
  file_ << kept << std::flush;
  if (!file_) fail(path_);
}

void JsonLogger::log_metrics(const TrainingPlace& place, const MetricValues& values) {
  nlohmann::ordered_json line = {{"epoch", place.epoch}, {"step", place.step}};
  for (const auto& [name, value] : values) {
    line[name] = std::isfinite(value) ? nlohmann::ordered_json(value) : nullptr;
  }
  file_ << line.dump() << '\n' << std::flush;
  if (!file_) fail(path_);
}

}  // namespace ddp
