#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/exit_codes.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/process_group.h"

// A worker for tests of how ddp-run reports and handles a worker that gets out of step.
//
//   flight_worker skip    rank 1 never issues the third operation, and waits
//   flight_worker stop    rank 1 stops itself (SIGSTOP) in the first round, before the third
//   flight_worker cause   rank 1 fails by itself and exits after all others, with status 68
//   flight_worker recv    rank 1 waits for a message with a tag that rank 0 does not send
//   flight_worker hang    all report a step; then rank 1 hangs and the others wait for it
//
// Later rounds succeed. Writes its process id to $OUT/pid.<rank>.<restarts>.
namespace {

using ddp::Buffer;
using ddp::DType;
using ddp::ReduceOp;

void wait_for_message(ddp::ProcessGroup& group) {
  std::vector<float> values(1'024, 1.0F);
  const Buffer buffer{values.data(), values.size(), DType::kF32};
  if (group.rank() == 0) group.send(buffer, 1, 6)->wait();
  if (group.rank() == 1) {
    group.recv(buffer, 0, 6)->wait();
    ddp::OpOptions options;
    options.tag = "activations";
    options.timeout = std::chrono::seconds(5);
    group.recv(buffer, 0, 7, options)->wait();
  }
  for (;;) ::pause();
}

std::string pid_file(int rank, int restarts) {
  return std::string(std::getenv("OUT")) + "/pid." + std::to_string(rank) + "." +
         std::to_string(restarts);
}

// Until its agent has seen its end.
void wait_until_gone(int rank) {
  pid_t pid = 0;
  std::ifstream(pid_file(rank, 0)) >> pid;
  while (pid > 0 && ::kill(pid, 0) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // sleep: the end cannot be awaited
  }
}

// As a program that meets an error: the others learn of it before this process has ended.
[[noreturn]] void fail(ddp::ProcessGroup& group) {
  group.abort("rank 1 cannot go on");
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank != group.rank()) wait_until_gone(rank);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // sleep: a slow way to end
  std::_Exit(ddp::kExitCheckpointUnwritable);
}

void run(const std::string& how, int restarts) {
  const auto group = ddp::ProcessGroup::from_environment();
  std::ofstream(pid_file(group->rank(), restarts)) << ::getpid() << std::endl;
  std::vector<float> values(1'000, 1.0F);
  const Buffer buffer{values.data(), values.size(), DType::kF32};
  group->broadcast(buffer, 0)->wait();
  if (how == "recv") wait_for_message(*group);
  // The others are workers that their agent knows nothing of.
  std::unique_ptr<ddp::ControlChannel> channel;
  if (how == "hang") {
    channel = ddp::ControlChannel::from_environment({});
    channel->progress(1, 0, 0);
  }
  if (group->rank() == 1 && restarts == 0) {
    if (how == "stop") ::raise(SIGSTOP);
    if (how == "cause") fail(*group);
    for (;;) ::pause();
  }
  ddp::OpOptions options;
  options.tag = "bucket 3";
  if (how == "skip" && restarts == 0) options.timeout = std::chrono::seconds(5);
  group->all_reduce(buffer, ReduceOp::kSum, options)->wait();
}

}  // namespace

int main(int argc, char** argv) {
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  try {
    run(argc > 1 ? argv[1] : "", restarts != nullptr ? std::atoi(restarts) : 0);
    return 0;
  } catch (const ddp::CollectiveError& error) {
    std::cerr << error.what() << std::endl;
    return ddp::kExitCollectiveFailed;
  }
}
