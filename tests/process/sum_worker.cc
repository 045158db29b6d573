#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "common/base/exit_codes.h"
#include "worker/runtime/process_group.h"

// A worker for tests that disturb a job: `sum_worker FILE STEPS`. Each step adds up numbers of all
// ranks, and each tenth one passes them on from rank to rank. At the end, FILE.<rank> has a digest
// of all results, which depends on nothing but STEPS and the number of ranks.
namespace {

using ddp::Buffer;
using ddp::DType;
using ddp::ReduceOp;

constexpr std::size_t kNumbers = 1'000;

void pass_on(ddp::ProcessGroup& group, const Buffer& buffer) {
  for (int from = 0; from < group.size(); ++from) {
    const int to = (from + 1) % group.size();
    if (group.rank() == from) group.send(buffer, to, 1)->wait();
    if (group.rank() == to) group.recv(buffer, from, 1)->wait();
  }
}

std::uint64_t run(ddp::ProcessGroup& group, int steps) {
  std::uint64_t digest = 0xcbf29ce484222325;  // FNV-1a.
  std::vector<float> values(kNumbers);
  const Buffer buffer{values.data(), values.size(), DType::kF32};
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < kNumbers; ++i) {
      const auto number = static_cast<std::size_t>(31 * step + 17 * group.rank()) + i;
      values[i] = static_cast<float>(number % 997) / 7;
    }
    group.all_reduce(buffer, ReduceOp::kSum)->wait();
    if (group.size() > 1 && step % 10 == 0) pass_on(group, buffer);
    for (const float value : values) {
      digest ^= static_cast<std::uint64_t>(value * 1'024);
      digest *= 0x100000001b3;
    }
  }
  return digest;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return ddp::kExitUsage;
  try {
    const auto group = ddp::ProcessGroup::from_environment();
    const std::uint64_t digest = run(*group, std::atoi(argv[2]));
    std::ofstream(std::string(argv[1]) + "." + std::to_string(group->rank())) << digest << "\n";
    return 0;
  } catch (const ddp::CollectiveError& error) {
    std::cerr << error.what() << std::endl;
    return ddp::kExitCollectiveFailed;
  }
}
