#pragma once

#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>

#include "common/base/ids.h"

namespace ddp {

struct SpawnOptions {
  // Of this process, only the calling thread goes on in the children. What other threads hold, a
  // lock of the allocator or LibTorch's pool, would be held for ever there, so they are refused
  // unless the caller knows better.
  bool allow_threads = false;
  // How long a child may go on after it was told to end (SIGTERM), because another one has failed.
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

// Runs fn(rank) in `nprocs` child processes of this one and returns when all of them have:
// PyTorch's torch.multiprocessing.spawn, for trying things out and for tests; whatever has to
// survive a failure belongs under ddp-run.
//
//   ddp::spawn([](ddp::Rank rank) {
//     auto group = ddp::ProcessGroup::from_environment();   // Of all children, in shared memory.
//     ...
//   }, 4);
//
// The children are forks: everything that was there before the call is there in each of them, as a
// copy. They have the environment of workers of one node (RANK, WORLD_SIZE, LOCAL_RANK,
// MASTER_ADDR, MASTER_PORT, ...), with a store of their own, which the program ddp-rendezvous
// serves (runtime/store_daemon.h says where it is looked for). A child ends by _exit when fn
// returns: its buffered output is written, destructors of static objects do not run.
//
// The first child that throws or dies ends the others, and its exception's text is thrown here, as
// ProcessError with its rank. A child does not outlive this process.
//
// Throws std::invalid_argument for nprocs below 1 or above 256, std::logic_error for a process with
// more than one thread, std::runtime_error if processes or the store cannot be started.
void spawn(const std::function<void(Rank)>& fn, int nprocs, const SpawnOptions& options = {});

}  // namespace ddp
