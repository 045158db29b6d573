#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "common/base/exit_codes.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/process_group.h"

// A worker that trains: in each step it computes, then sums with the others, and reports.
//
//   late_worker MS JITTER   each step takes MS milliseconds of its own, give or take JITTER percent
//
// While $OUT/slow.NODE exists, NODE being what the variable TEST_NODE says, each step takes MS
// more. Ends when $OUT/end exists: all ranks in the same step.
namespace {

// The machine has fewer cores than the test has ranks.
void compute(double milliseconds) {
  const std::chrono::duration<double, std::milli> time(milliseconds);
  std::this_thread::sleep_for(time);  // sleep: stands for work of known length
}

bool exists(const std::string& name) {
  return std::ifstream(std::string(std::getenv("OUT")) + "/" + name).good();
}

void run(double milliseconds, double jitter) {
  const auto channel = ddp::ControlChannel::from_environment({});
  const auto group = ddp::ProcessGroup::from_environment();
  const std::string slow = std::string("slow.") + std::getenv("TEST_NODE");
  std::srand(static_cast<unsigned>(group->rank()) + 1);
  for (std::int64_t step = 1;; ++step) {
    const double noise = 2.0 * std::rand() / RAND_MAX - 1;
    compute(milliseconds * (1 + jitter / 100 * noise) + (exists(slow) ? milliseconds : 0));
    float end = exists("end") ? 1 : 0;
    group->all_reduce({&end, 1, ddp::DType::kF32}, ddp::ReduceOp::kSum)->wait();
    channel->progress(step, 0, 0);
    if (end > 0) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? std::atof(argv[1]) : 50, argc > 2 ? std::atof(argv[2]) : 0);
    return 0;
  } catch (const ddp::CollectiveError& error) {
    std::cerr << error.what() << std::endl;
    return ddp::kExitCollectiveFailed;
  }
}
