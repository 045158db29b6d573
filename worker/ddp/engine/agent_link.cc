#include "worker/ddp/engine/agent_link.h"

#include <mutex>

namespace ddp {
namespace {

// What the agent's orders are for.
struct Target {
  std::mutex mutex;
  std::weak_ptr<ProcessGroup> group;

  std::shared_ptr<ProcessGroup> get() {
    const std::lock_guard lock(mutex);
    return group.lock();
  }
};

Target& target() {
  static Target one;
  return one;
}

// The process has one connection to its agent: an ElasticWorker's, or a channel alone.
struct Link {
  std::mutex mutex;
  std::unique_ptr<ElasticWorker> worker;
  std::unique_ptr<ControlChannel> channel;
};

Link& link() {
  static Link one;
  return one;
}

}  // namespace

ElasticWorker* elastic_worker() {
  Link& one = link();
  const std::lock_guard lock(one.mutex);
  if (one.worker || one.channel) return one.worker.get();
  auto worker = std::make_unique<ElasticWorker>();
  if (!worker->reconfigurable()) return nullptr;
  one.worker = std::move(worker);
  return one.worker.get();
}

ControlChannel& agent_channel() {
  // The channel's thread uses it until the channel is gone.
  static Target& orders_are_for = target();
  Link& one = link();
  const std::lock_guard lock(one.mutex);
  if (one.worker) return one.worker->channel();
  if (!one.channel) {
    one.channel =
        ControlChannel::from_environment({.on_abort =
                                              [](const std::string& reason) {
                                                if (const auto group = orders_are_for.get())
                                                  group->abort(reason);
                                              },
                                          .on_commit_request = {}});
  }
  return *one.channel;
}

std::shared_ptr<CheckpointWriter> agent_writer() {
  if (!agent_channel().connected()) return nullptr;
  static const auto writer = std::make_shared<CheckpointWriter>(&agent_channel());
  return writer;
}

void abort_by_agent(const std::shared_ptr<ProcessGroup>& group) {
  agent_channel();
  if (ElasticWorker* worker = elastic_worker()) return worker->attach(group);
  const std::lock_guard lock(target().mutex);
  target().group = group;
}

}  // namespace ddp
