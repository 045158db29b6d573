#pragma once

#include <string>

namespace ddp::train {

// Cores that this process may run on.
int usable_cores();

// Threads for one of `local_world_size` workers on this machine: OMP_NUM_THREADS if it is a
// positive number, else an equal share of the usable cores, at least one.
int default_threads(int local_world_size);

// Path of the BLAS library that is loaded into this process, "" if there is none. It decides the
// speed of LibTorch on a CPU, so every result names it.
std::string loaded_blas();

// The last bits of a matrix product depend on how many threads computed it. OpenBLAS has threads of
// its own, which LibTorch's setting does not reach; without OpenBLAS nothing happens.
void set_blas_threads(int threads);

}  // namespace ddp::train
