// bench-gloo: times c10d::ProcessGroupGloo from C++ the way that bench-collectives times ours, so
// that no interpreter is in gloo's figures. Prints the same lines.
//
// usage: RANK=r WORLD_SIZE=p bench-gloo STORE SECONDS OPS BYTES...
// STORE is the file of the FileStore through which the ranks connect; it must not exist yet. OPS:
// all_reduce, broadcast, all_gather, all_to_all (this ProcessGroupGloo has no reduce_scatter).
// Traffic is over the loopback interface. Floats only: this gloo does not sum bfloat16.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "bench/pattern.h"
#include "bench/program.h"
#include "bench/samples.h"

namespace ddp::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Group = c10d::ProcessGroupGloo;

constexpr int kWarmups = 3;
constexpr std::size_t kSpotChecks = 8;
constexpr std::size_t kElement = sizeof(float);

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// One operation with this rank's tensors.
class GlooExercise {
 public:
  GlooExercise(Group& group, const std::string& op, std::size_t bytes) : group_(group), op_(op) {
    const auto count = std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes / kElement));
    const std::int64_t ranks = group.getSize();
    const bool in_place = op == "all_reduce" || op == "broadcast";
    const bool parts = op == "all_to_all";
    part_ = static_cast<std::size_t>(parts ? std::max<std::int64_t>(1, count / ranks) : count);
    const auto part = static_cast<std::int64_t>(part_);
    in_ = {at::zeros({parts ? part * ranks : count})};
    if (in_place) return;
    all_ = at::zeros({part * ranks});
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      outs_[0].push_back(all_.narrow(0, rank * part, part));
    }
    if (!parts && op != "all_gather") throw std::invalid_argument("gloo has no " + op);
  }

  void dirty(unsigned run) {
    fill_pattern(bytes_of(in_[0]), count_of(in_[0]), kElement, group_.getRank(), run);
    if (all_.defined()) std::memset(bytes_of(all_), 0, count_of(all_) * kElement);
  }

  void execute() {
    if (op_ == "all_reduce") {
      group_.allreduce(in_)->wait();
    } else if (op_ == "broadcast") {
      group_.broadcast(in_)->wait();
    } else if (op_ == "all_gather") {
      group_.allgather(outs_, in_)->wait();
    } else {
      group_.alltoall_base(all_, in_[0], no_counts_, no_counts_)->wait();
    }
  }

  bool right(unsigned run, bool all) {
    at::Tensor& result = all_.defined() ? all_ : in_[0];
    const std::size_t count = count_of(result);
    const std::size_t step = all ? 1 : std::max<std::size_t>(1, (count - 1) / (kSpotChecks - 1));
    for (std::size_t index = 0; index < count; index += step) {
      if (element_at(bytes_of(result), kElement, index) != expected(run, index)) return false;
    }
    return true;
  }

 private:
  static std::byte* bytes_of(at::Tensor& tensor) {
    return static_cast<std::byte*>(tensor.data_ptr());
  }
  static std::size_t count_of(const at::Tensor& tensor) {
    return static_cast<std::size_t>(tensor.numel());
  }

  float expected(unsigned run, std::size_t index) const {
    const auto own = static_cast<std::size_t>(group_.getRank()) * part_;
    if (op_ == "broadcast") return pattern(0, run, index);
    if (op_ == "all_gather") return pattern(static_cast<int>(index / part_), run, index % part_);
    if (op_ == "all_to_all") {
      return pattern(static_cast<int>(index / part_), run, own + index % part_);
    }
    float sum = 0;
    for (int rank = 0; rank < group_.getSize(); ++rank) sum += pattern(rank, run, index);
    return sum;
  }

  Group& group_;
  const std::string op_;
  std::size_t part_ = 0;  // Elements that go from one rank to one other.
  std::vector<at::Tensor> in_;
  at::Tensor all_;  // Undefined in place.
  std::vector<std::vector<at::Tensor>> outs_{1};
  std::vector<std::int64_t> no_counts_;
};

std::vector<double> measure(Group& group, GlooExercise& exercise, double budget_s) {
  std::vector<double> times;
  times.reserve(kMostRuns);
  std::vector<at::Tensor> word{at::ones({1}, at::kInt)};
  auto started = Clock::now();
  for (int run = -kWarmups;; ++run) {
    const auto number = static_cast<unsigned>(run + kWarmups);
    exercise.dirty(number);
    group.barrier()->wait();
    const auto begin = Clock::now();
    exercise.execute();
    const double took = seconds_since(begin);
    if (!exercise.right(number, run == -kWarmups)) throw std::runtime_error("wrong result");
    if (run < 0) {
      started = Clock::now();
      continue;
    }
    times.push_back(took);
    *word[0].data_ptr<int>() = measure_on(times.size(), seconds_since(started), budget_s) ? 1 : 0;
    group.broadcast(word)->wait();
    if (*word[0].data_ptr<int>() == 0) return times;
  }
}

// The times of all ranks, rank after rank.
std::vector<double> collect(Group& group, std::vector<double>& own) {
  const auto runs = static_cast<std::int64_t>(own.size());
  std::vector<at::Tensor> in{at::from_blob(own.data(), {runs}, at::kDouble)};
  std::vector<std::vector<at::Tensor>> outs(1);
  for (int rank = 0; rank < group.getSize(); ++rank) {
    outs[0].push_back(at::zeros({runs}, at::kDouble));
  }
  group.allgather(outs, in)->wait();
  std::vector<double> all;
  for (const at::Tensor& out : outs[0]) {
    all.insert(all.end(), out.data_ptr<double>(), out.data_ptr<double>() + runs);
  }
  return all;
}

void measure_size(Group& group, const std::string& op, std::size_t bytes, double budget_s) {
  GlooExercise exercise(group, op, bytes);
  std::vector<double> times = measure(group, exercise, budget_s);
  const std::vector<double> all = collect(group, times);
  if (group.getRank() != 0) return;
  std::puts(json_line(op, "f32", "private", bytes, times, longest(all, times.size())).c_str());
  std::fflush(stdout);
}

int number_from_environment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) throw std::invalid_argument(std::string(name) + " is not set");
  return std::stoi(text);
}

void run(int argc, char** argv) {
  if (argc < 5) {
    throw std::invalid_argument("usage: bench-gloo STORE SECONDS OPS BYTES...");
  }
  at::set_num_threads(1);
  const int rank = number_from_environment("RANK");
  const int size = number_from_environment("WORLD_SIZE");
  auto options = Group::Options::create();
  options->devices.push_back(Group::createDeviceForInterface("lo"));
  Group group(c10::make_intrusive<c10d::FileStore>(argv[1], size), rank, size, options);
  for (const std::string& op : parse_names(argv[3])) {
    for (int at = 4; at < argc; ++at) {
      measure_size(group, op, parse_sizes(argv[at]).at(0), std::stod(argv[2]));
    }
  }
  group.barrier()->wait();
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  return ddp::bench::run_program("bench-gloo", ddp::bench::run, argc, argv);
}
