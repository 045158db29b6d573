#pragma once

#include <thread>

namespace ddp {

// Keeps a thread until the process ends. For a thread that cannot be joined because it is inside a
// call that does not return, such as one of NCCL, CUDA or a dead disk. The thread must own
// everything that it uses. Any thread.
void park_thread(std::thread thread);

}  // namespace ddp
