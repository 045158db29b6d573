#pragma once

// What a test can do to the stand-in and ask of it. Ranks are ranks of communicators; a switch
// holds for all communicators of that rank, those to come too, until reset().
namespace ddp::standin {

struct Control {
  // Undoes all switches and forgets violations. Between tests, when no communicator is left.
  void (*reset)();
  // The rank's communicator reports this result asynchronously, and its kernels stand still.
  void (*fail_rank)(int rank, int result);
  // Kernels of the rank stand still until their communicator is aborted.
  void (*hang_kernels)(int rank);
  // The rank's communicator never becomes ready (ncclCommInitRank never returns).
  void (*hang_init)(int rank);
  // Blocking calls that hang, and aborts, return only when release() is called.
  void (*hang_abort)(int rank);
  void (*release)();
  // A kernel of an aborted communicator goes on writing to its output for so long.
  void (*linger)(int milliseconds);
  // A call on a non-blocking communicator gets its kernel into the stream only after this time.
  void (*delay_launch)(int milliseconds);
  // cudaEventQuery gives this error for events of the device.
  void (*fail_device)(int device, int error);
  // ncclGetUniqueId fails.
  void (*fail_unique_id)(int result);

  // Uses that NCCL or CUDA forbid, as text, one a line; empty if there were none.
  const char* (*violations)();
  // Objects made and not ended: communicators, streams, events, allocations.
  int (*live_objects)();
  // Kernels that have begun and not ended.
  int (*running_kernels)();
};

}  // namespace ddp::standin

// Exported by the library.
extern "C" const ddp::standin::Control* standin_control();
