#pragma once

namespace ddp {

// From now on this process keeps freed memory for reuse. A training step allocates and frees the
// same tensors as the one before. By default the C library returns large ones to the system, which
// clears their pages again each time: a fifth of a step of a small convolutional model on a CPU.
// All threads then share one heap, so memory that one frees serves the others. The process never
// shrinks. ddp-train calls this first of all; other programs may call it in main(), before they
// start threads. Does nothing unless the C library is glibc.
void keep_freed_memory();

}  // namespace ddp
