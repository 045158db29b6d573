#pragma once

#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>

#include "common/base/ids.h"

namespace ddp {

struct SpawnOptions {
  // How long a child may run on after SIGTERM, which it gets when another child has failed.
  std::chrono::milliseconds grace{5'000};
};

// A child of spawn() did not end well.
class ProcessError : public std::runtime_error {
 public:
  ProcessError(const std::string& text, Rank failed_rank, int status, int signal_number)
      : std::runtime_error(text), rank(failed_rank), exit_code(status), signal(signal_number) {}
  Rank rank;
  int exit_code;  // 0 if a signal ended it.
  int signal;     // 0 if it ended by itself.
};

// Runs fn(rank) in `nprocs` child processes and returns when all have returned. Like PyTorch's
// torch.multiprocessing.spawn, for experiments and tests; use ddp-run for anything that must
// survive a failure.
//
//   ddp::spawn([](ddp::Rank rank) {
//     auto group = ddp::ProcessGroup::from_environment();   // Of all children, in shared memory.
//     ...
//   }, 4);
//
// The children are forks: each has a copy of everything that existed before the call. They have the
// environment of workers of one node (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, ...),
// with a store of their own, which the program ddp-rendezvous serves (runtime/store_daemon.h says
// where it is looked for). A child calls _exit when fn returns: its buffered output is written, but
// destructors of static objects do not run.
//
// If a child throws or dies, the others are ended, and spawn throws ProcessError with the rank and
// the text of the first one. A child does not outlive this process.
//
// Throws std::invalid_argument for nprocs below 1 or above 256, std::logic_error for a process with
// more than one thread (only the calling one would exist in the children, and locks that others
// hold, such as the allocator's, would stay locked for ever there), std::runtime_error if processes
// or the store cannot be started.
void spawn(const std::function<void(Rank)>& fn, int nprocs, const SpawnOptions& options = {});

}  // namespace ddp
