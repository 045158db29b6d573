#pragma once

#include <thread>

namespace ddp {

// Keeps a thread that cannot be joined, because it is inside a call of NCCL or CUDA that does not
// return, until the process ends. What the thread uses must stay alive as long, so it owns it.
// Any thread.
void park_thread(std::thread thread);

}  // namespace ddp
