#include "worker/ddp/engine/init_distributed.h"

#include <mutex>

#include "worker/ddp/engine/agent_link.h"

namespace ddp {
namespace {

struct Made {
  std::mutex mutex;
  std::weak_ptr<ProcessGroup> group;
};

Made& made() {
  static Made one;
  return one;
}

}  // namespace

std::shared_ptr<ProcessGroup> init_distributed(const InitProcessGroupOptions& options) {
  const std::lock_guard lock(made().mutex);
  // With the channel open, elastic_worker() makes none.
  agent_channel();
  if (ElasticWorker* worker = elastic_worker()) {
    std::shared_ptr<ProcessGroup> group = worker->join();
    made().group = group;
    return group;
  }
  std::shared_ptr<ProcessGroup> group = made().group.lock();
  if (!group) {
    group = init_process_group(options);
    made().group = group;
  }
  return group;
}

bool is_of_init_distributed(const std::shared_ptr<ProcessGroup>& group) {
  const std::lock_guard lock(made().mutex);
  return group && made().group.lock() == group;
}

}  // namespace ddp
