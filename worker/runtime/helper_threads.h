#pragma once

#include <functional>

namespace ddp::runtime {

// Runs a task on a thread of its own and does not wait for it: for a caller that the task waits
// for. The thread is joined when a later call finds it done, so few are kept. Any thread.
void run_on_helper_thread(std::function<void()> task);

}  // namespace ddp::runtime
