#include "common/process/parked_threads.h"

#include <mutex>
#include <utility>
#include <vector>

namespace ddp {

void park_thread(std::thread thread) {
  // Never destroyed: the destructor of a running std::thread ends the process.
  static auto& mutex = *new std::mutex;
  static auto& parked = *new std::vector<std::thread>;
  const std::lock_guard lock(mutex);
  parked.push_back(std::move(thread));
}

}  // namespace ddp
