#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace ddp::bench {

// The most runs of one size that a program keeps.
constexpr std::size_t kMostRuns = 200'000;

// Statistics of a set of times, in seconds.
struct Summary {
  double median = 0;
  double min = 0;
  double p99 = 0;
  double average = 0;
};

// Of at least one time. Sorts `times`.
Summary summarize(std::span<double> times);

// The time of the slowest rank in each run. `by_rank` has `runs` times of rank 0, then of rank 1,
// and so on.
std::vector<double> longest(std::span<const double> by_rank, std::size_t runs);

// {"op", "dtype", "memory", "bytes", "median_s", "min_s", "p99_s", "average_s", "median_max_s",
// "runs"} on one line without its end. `own` are the times of rank 0.
std::string json_line(const std::string& op, const std::string& dtype, const std::string& memory,
                      std::size_t bytes, std::vector<double> own, std::vector<double> maxima);

// Whether to continue measuring, after `runs` runs in `elapsed_s` of the intended `budget_s`
// seconds. At least five runs are made, however long they take.
bool measure_on(std::size_t runs, double elapsed_s, double budget_s);

// Parses "8,4096" as numbers of bytes; throws std::invalid_argument that names the wrong text.
std::vector<std::size_t> parse_sizes(const std::string& text);
// Splits "a,b" into its parts.
std::vector<std::string> parse_names(const std::string& text);

}  // namespace ddp::bench
