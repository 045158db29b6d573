#include <sys/stat.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "bench/program.h"
#include "common/base/clock.h"
#include "worker/runtime/elastic_worker.h"
#include "worker/runtime/process_group.h"

// A worker of a large job that hardly computes: every ten seconds all add a number. One sum of a
// thousand ranks takes two cores for seconds, so sums without a pause would take them from the
// rest.
//
//   bench-scale-worker ROUNDS END
//
// After the first sum of each round, rank 0 appends "ROUND WORKERS" to the file ROUNDS. The job is
// over when the file END exists.
namespace ddp::bench {
namespace {

constexpr std::chrono::seconds kPause{10};
constexpr std::chrono::milliseconds kLook{50};

void append_line(const std::string& path, Round round, int workers) {
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr) throw std::runtime_error("cannot write " + path);
  std::fprintf(file, "%lld %d\n", static_cast<long long>(round), workers);
  std::fclose(file);
}

bool exists(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0;
}

// Until it is time for the next sum, the job is over, or the round has failed.
void pause(const ProcessGroup& group, const std::string& end) {
  const TimePoint until = Clock::now() + kPause;
  while (Clock::now() < until && !exists(end) && !group.failure())
    std::this_thread::sleep_for(kLook);
}

// Returns when the job is over; throws CollectiveError when the round fails.
void add_numbers(ElasticWorker& worker, ProcessGroup& group, const std::string& rounds,
                 const std::string& end, std::int64_t& step) {
  for (bool first = true;; first = false) {
    // Rank 0 alone looks, so that all end after the same sum.
    double is_over = group.rank() == 0 && exists(end) ? 1 : 0;
    group.all_reduce({&is_over, 1, DType::kF64}, ReduceOp::kSum, {.timeout = {}, .tag = "over"})
        ->wait();
    worker.channel().progress(++step);
    if (first && group.rank() == 0) append_line(rounds, worker.round(), group.size());
    if (is_over > 0) return;
    if (group.rank() == 0) pause(group, end);  // The others wait for it in the sum.
  }
}

void run(int argc, char** argv) {
  if (argc != 3) throw std::invalid_argument("expected two files: ROUNDS END");
  ElasticWorker worker;
  std::int64_t step = 0;
  for (;;) {
    std::shared_ptr<ProcessGroup> group;
    try {
      group = worker.join();
      return add_numbers(worker, *group, argv[1], argv[2], step);
    } catch (const CollectiveError& error) {
      group.reset();
      worker.leave(step, error);
    }
  }
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  return ddp::bench::run_program("bench-scale-worker", ddp::bench::run, argc, argv);
}
