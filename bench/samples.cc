#include "bench/samples.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <numeric>
#include <sstream>
#include <stdexcept>

namespace ddp::bench {

Summary summarize(std::span<double> times) {
  std::sort(times.begin(), times.end());
  const std::size_t count = times.size();
  Summary summary;
  summary.median = times[count / 2];
  summary.min = times[0];
  summary.p99 = times[std::min(count - 1, count * 99 / 100)];
  summary.average = std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(count);
  return summary;
}

std::vector<double> longest(std::span<const double> by_rank, std::size_t runs) {
  std::vector<double> maxima(by_rank.begin(), by_rank.begin() + static_cast<std::ptrdiff_t>(runs));
  for (std::size_t at = runs; at < by_rank.size(); ++at) {
    maxima[at % runs] = std::max(maxima[at % runs], by_rank[at]);
  }
  return maxima;
}

std::string json_line(const std::string& op, const std::string& dtype, const std::string& memory,
                      std::size_t bytes, std::vector<double> own, std::vector<double> maxima) {
  const Summary mine = summarize(own);
  const Summary all = summarize(maxima);
  char text[512];
  std::snprintf(text, sizeof text,
                R"({"op": "%s", "dtype": "%s", "memory": "%s", "bytes": %zu, "median_s": %.9f, )"
                R"("min_s": %.9f, "p99_s": %.9f, "average_s": %.9f, "median_max_s": %.9f, )"
                R"("runs": %zu})",
                op.c_str(), dtype.c_str(), memory.c_str(), bytes, mine.median, mine.min, mine.p99,
                mine.average, all.median, own.size());
  return text;
}

bool measure_on(std::size_t runs, double elapsed_s, double budget_s) {
  return (elapsed_s < budget_s || runs < 5) && runs < kMostRuns;
}

std::vector<std::string> parse_names(const std::string& text) {
  std::vector<std::string> names;
  std::istringstream stream(text);
  for (std::string name; std::getline(stream, name, ',');) names.push_back(name);
  return names;
}

std::vector<std::size_t> parse_sizes(const std::string& text) {
  std::vector<std::size_t> sizes;
  for (const std::string& part : parse_names(text)) {
    std::size_t size = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), size);
    if (error != std::errc() || end != part.data() + part.size() || size == 0) {
      throw std::invalid_argument("--bytes: '" + part + "' is not a number of bytes");
    }
    sizes.push_back(size);
  }
  return sizes;
}

}  // namespace ddp::bench
