#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "launcher/rendezvous/job_record.h"

namespace ddp::rendezvous {

// Which nodes have failed in the last hour, as the root cause of a round's end. The coordinator
// leaves out a node that has failed too often (JobRules::max_node_failures), and another
// coordinator of the job goes on counting (JobRecord). The record is stored for each round, so no
// more is kept of a node than what decides.
class NodeFailures {
 public:
  // How long a failure counts.
  static constexpr Duration kWindow{3'600'000};
  // The newest of all nodes are kept.
  static constexpr std::size_t kKept = 256;

  // Who a node is, for people and after a new start of its ddp-run, which gets a new id.
  struct Node {
    NodeId node_id;
    std::string host;
    int node_rank = -1;            // As the node asks for it; -1: it does not.
    bool shares_its_host = false;  // Another node of the job is on the same host.
  };
  struct Count {
    int failures = 0;
    std::string last;  // What the last one was.
  };

  // per_node: so many of a node decide; 0: none are counted.
  explicit NodeFailures(int per_node) : per_node_(per_node) {}

  void add(TimePoint now, const Node& node, const std::string& text);
  // The node's failures in the last hour.
  Count of(TimePoint now, const Node& node) const;
  bool empty() const { return failures_.empty(); }

  std::vector<NodeFailureRecord> records(TimePoint now) const;
  // Their ages go on from what the record says, since nobody knows for how long it was stored.
  void restore(TimePoint now, const std::vector<NodeFailureRecord>& records);

 private:
  struct Failure {
    Node node;
    std::string text;
    TimePoint when;
  };
  static bool is_same(const Node& a, const Node& b);

  const int per_node_;
  std::vector<Failure> failures_;  // Oldest first; of each node, only the newest has its text.
};

}  // namespace ddp::rendezvous
