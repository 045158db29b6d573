#pragma once

namespace ddp {

// Memory that is given back stays with this process from now on, for its next use. A training step
// takes and gives back the same tensors as the one before, and by default the C library returns the
// large ones to the system, which clears them anew, page by page, every time: a fifth of a step of
// a small convolutional model on a CPU. ddp-train calls this first of all; other programs may, in
// main(), before threads begin: all share one heap, so what one of them gives back serves the
// others. The process stays as large as it ever was. Does nothing with another C library than
// glibc.
void keep_freed_memory();

}  // namespace ddp
