#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/store/store.h"
#include "worker/runtime/worker_environment.h"
#include "worker/transport/failure.h"
#include "worker/transport/transport.h"

namespace ddp {

// Joins the nodes of a round: every rank puts its endpoint into the store under
// "<prefix>/addr/<rank>" and the size of its node under "<prefix>/node/<node>", then the ranks of
// each lane connect to each other.
class NodeLinks {
 public:
  NodeLinks(Store& store, std::string prefix, const WorkerEnvironment& worker, TimePoint deadline)
      : store_(store), prefix_(std::move(prefix)), worker_(worker), deadline_(deadline) {}

  // addresses: where this rank can be reached. Returns the failure, in which kTimeout names the
  // ranks that are missing, or sets `transport`.
  Outcome connect(const std::vector<std::string>& addresses, std::shared_ptr<Segment> segment,
                  std::unique_ptr<Transport>& transport);

 private:
  Outcome publish(const std::string& key, const std::string& value);
  Outcome read(const std::string& key, std::string& value);
  Outcome read_node_sizes(std::vector<int>& sizes);
  Failure missing(const std::string& reason);
  Failure explain(const Error& error);

  Store& store_;
  std::string prefix_;
  const WorkerEnvironment& worker_;
  TimePoint deadline_;
};

}  // namespace ddp
