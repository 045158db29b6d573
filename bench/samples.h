#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace ddp::bench {

// Most runs of one size that a program keeps.
constexpr std::size_t kMostRuns = 200'000;

// What is said about a set of times, in seconds.
struct Summary {
  double median = 0;
  double min = 0;
  double p99 = 0;
  double average = 0;
};

// Of at least one time. Sorts `times`.
Summary summarize(std::span<double> times);

// Per run the longest of the ranks' times. `by_rank` has `runs` times of rank 0, then of rank 1,
// and so on.
std::vector<double> longest(std::span<const double> by_rank, std::size_t runs);

// {"op", "dtype", "memory", "bytes", "median_s", "min_s", "p99_s", "average_s", "median_max_s",
// "runs"} on one line without its end. `own` are the times of rank 0.
std::string json_line(const std::string& op, const std::string& dtype, const std::string& memory,
                      std::size_t bytes, std::vector<double> own, std::vector<double> maxima);

// Whether to measure on: `runs` are done since `elapsed_s` seconds, of which `budget_s` are meant
// to be used. At least five runs are made, whatever they take.
bool measure_on(std::size_t runs, double elapsed_s, double budget_s);

// "8,4096" as numbers of bytes; throws std::invalid_argument naming the text that is none.
std::vector<std::size_t> parse_sizes(const std::string& text);
// "a,b" as its parts.
std::vector<std::string> parse_names(const std::string& text);

}  // namespace ddp::bench
