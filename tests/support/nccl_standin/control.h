#pragma once

// A test's controls of the stand-in. Ranks are ranks of communicators. A switch holds for all
// communicators of that rank, including later ones, until reset().
namespace ddp::standin {

struct Control {
  // Undoes all switches and forgets violations. Call it between tests, when no communicator is
  // left.
  void (*reset)();
  // The rank's communicator reports this result asynchronously, and its kernels stop.
  void (*fail_rank)(int rank, int result);
  // Kernels of the rank stop until their communicator is aborted.
  void (*hang_kernels)(int rank);
  // ncclCommInitRankConfig of the rank returns only when release() is called, with an error.
  void (*hang_init)(int rank);
  // Blocking calls that hang, and aborts, go on only when release() is called.
  void (*hang_abort)(int rank);
  void (*release)();
  // A kernel of an aborted communicator still writes to its output for this time.
  void (*linger)(int milliseconds);
  // A call enqueues its kernel, and returns, only after this time, or when its communicator is
  // aborted.
  void (*delay_launch)(int milliseconds);
  // cudaEventQuery returns this error for events of the device.
  void (*fail_device)(int device, int error);
  // ncclGetUniqueId fails.
  void (*fail_unique_id)(int result);

  // Uses that NCCL or CUDA forbid, as text, one per line; empty if there were none.
  const char* (*violations)();
  // Number of objects not yet destroyed: communicators, streams, events, allocations, graphs.
  int (*live_objects)();
  // Number of running kernels.
  int (*running_kernels)();
};

}  // namespace ddp::standin

// Exported by the library.
extern "C" const ddp::standin::Control* standin_control();
