#pragma once

#include <string>

namespace ddp::train {

// Cores that this process may run on.
int usable_cores();

// Threads for one of `local_world_size` workers on this machine: OMP_NUM_THREADS if it is a
// positive number, else an equal share of the usable cores, at least one.
int default_threads(int local_world_size);

// Path of the BLAS library that is loaded into this process, "" if there is none. LibTorch's speed
// on a CPU depends on it, so every result names it.
std::string loaded_blas();

// Sets the number of OpenBLAS's own threads, which LibTorch's setting does not change. The last
// bits of a matrix product depend on it. Does nothing without OpenBLAS.
void set_blas_threads(int threads);

}  // namespace ddp::train
