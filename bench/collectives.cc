// bench-collectives: times the operations of a ProcessGroup. Started by ddp-run; rank 0 prints one
// JSON line per operation, type, memory and size (bench/samples.h).
//
// A run: every rank rewrites its buffers, a barrier, then the operation, which each rank times for
// itself. Three warm-up runs do not count. The whole result of the first run is verified, and a few
// places of every run. Rank 0 decides when to stop.
#include <cstdio>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <boost/program_options.hpp>

#include "bench/exercise.h"
#include "bench/samples.h"
#include "common/base/clock.h"
#include "worker/runtime/process_group.h"

namespace ddp::bench {
namespace {

namespace po = boost::program_options;

constexpr int kWarmups = 3;

struct Options {
  std::vector<std::string> ops;
  std::vector<std::string> dtypes;
  std::vector<std::string> memories;
  std::vector<std::size_t> sizes;
  double seconds = 0;
};

double seconds_since(TimePoint begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Rank 0's decision whether to continue, broadcast to all.
bool agree(ProcessGroup& group, bool more) {
  std::int32_t word = more ? 1 : 0;
  group.broadcast({&word, 1, DType::kI32}, 0, at_once())->wait();
  return word != 0;
}

// The times of all ranks, rank after rank, on every rank.
std::vector<double> collect(ProcessGroup& group, std::vector<double>& own) {
  std::vector<double> all(own.size() * static_cast<std::size_t>(group.size()));
  group.all_gather({own.data(), own.size(), DType::kF64}, {all.data(), all.size(), DType::kF64})
      ->wait();
  return all;
}

// The times of this rank in seconds.
std::vector<double> measure(ProcessGroup& group, Exercise& exercise, double budget_s) {
  std::vector<double> times;
  times.reserve(kMostRuns);
  TimePoint started = Clock::now();
  for (int run = -kWarmups;; ++run) {
    const auto number = static_cast<unsigned>(run + kWarmups);
    exercise.dirty(number);
    group.barrier(at_once())->wait();
    const TimePoint begin = Clock::now();
    exercise.execute();
    const double took = seconds_since(begin);
    if (!exercise.right(number, run == -kWarmups)) {
      throw std::runtime_error("wrong result in run " + std::to_string(number));
    }
    if (run < 0) {
      started = Clock::now();
      continue;
    }
    times.push_back(took / exercise.parts());
    if (!agree(group, measure_on(times.size(), seconds_since(started), budget_s))) return times;
  }
}

void measure_all(ProcessGroup& group, const Options& options) {
  for (const std::string& op : options.ops) {
    for (const std::string& dtype : options.dtypes) {
      for (const std::size_t bytes : options.sizes) {
        for (const std::string& memory : options.memories) {
          Exercise exercise(group, parse_op(op), parse_dtype(dtype), memory == "registered", bytes);
          std::vector<double> times = measure(group, exercise, options.seconds);
          const std::vector<double> all = collect(group, times);
          if (group.rank() != 0) continue;
          std::puts(json_line(op, dtype, memory, bytes, times, longest(all, times.size())).c_str());
          std::fflush(stdout);
        }
      }
    }
  }
}

Options parse(int argc, char** argv) {
  po::options_description flags("usage: ddp-run ... --no-python bench-collectives [FLAG...]");
  flags.add_options()                                                                      //
      ("help", "this text")                                                                //
      ("op", po::value<std::string>()->default_value("all_reduce"), "names, with commas")  //
      ("dtype", po::value<std::string>()->default_value("f32"), "f32 and bf16, with commas")(
          "memory", po::value<std::string>()->default_value("private"),
          "private and registered, with commas")("seconds", po::value<double>()->default_value(0.2),
                                                 "time for each measurement")(
          "bytes", po::value<std::string>()->default_value("4096,65536,1048576,26214400"),
          "input of a rank (scatter: output of a rank), with commas");
  po::variables_map given;
  po::store(po::parse_command_line(argc, argv, flags), given);
  if (given.count("help") != 0) {
    std::cout << flags;
    std::exit(0);
  }
  Options options{parse_names(given["op"].as<std::string>()),
                  parse_names(given["dtype"].as<std::string>()),
                  parse_names(given["memory"].as<std::string>()),
                  parse_sizes(given["bytes"].as<std::string>()), given["seconds"].as<double>()};
  for (const std::string& op : options.ops) parse_op(op);
  for (const std::string& dtype : options.dtypes) parse_dtype(dtype);
  for (const std::string& memory : options.memories) {
    if (memory != "private" && memory != "registered") {
      throw std::invalid_argument("--memory: '" + memory + "' is neither private nor registered");
    }
  }
  return options;
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  try {
    const ddp::bench::Options options = ddp::bench::parse(argc, argv);
    const auto group = ddp::ProcessGroup::from_environment();
    ddp::bench::measure_all(*group, options);
    group->barrier()->wait();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench-collectives: %s\n", error.what());
    return 1;
  }
}
