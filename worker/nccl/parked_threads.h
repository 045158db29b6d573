#pragma once

#include <thread>

namespace ddp::nccl {

// Keeps a thread until the process ends. For a thread that cannot be joined because it is inside a
// call of NCCL or CUDA that does not return. The thread must own everything that it uses. Any
// thread.
void park_thread(std::thread thread);

}  // namespace ddp::nccl
