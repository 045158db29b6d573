#include "worker/ddp/engine/init_distributed.h"

#include <mutex>

namespace ddp {

std::shared_ptr<ProcessGroup> init_distributed(const InitProcessGroupOptions& options) {
  static std::mutex mutex;
  static std::weak_ptr<ProcessGroup> made;
  const std::lock_guard lock(mutex);
  std::shared_ptr<ProcessGroup> group = made.lock();
  if (!group) {
    group = init_process_group(options);
    made = group;
  }
  return group;
}

}  // namespace ddp
