#include "launcher/rendezvous/node_failures.h"

#include <algorithm>
#include <chrono>

namespace ddp::rendezvous {
namespace {

constexpr std::size_t kTextBytesMax = 300;

}  // namespace

// One ddp-run keeps its id through all its agents. A new ddp-run is the same node if it is on the
// same host and asks for the same rank. Without ranks, nodes that share a host cannot be told
// apart.
bool NodeFailures::is_same(const Node& a, const Node& b) {
  if (a.node_id == b.node_id) return true;
  if (a.host != b.host) return false;
  if (a.node_rank >= 0 && b.node_rank >= 0) return a.node_rank == b.node_rank;
  return !a.shares_its_host && !b.shares_its_host;
}

void NodeFailures::add(TimePoint now, const Node& node, const std::string& text) {
  std::erase_if(failures_, [now](const Failure& failure) { return now - failure.when >= kWindow; });
  if (per_node_ <= 0) return;
  int of_node = 1;
  for (auto failure = failures_.end(); failure != failures_.begin();) {
    --failure;
    if (!is_same(failure->node, node)) continue;
    failure->text.clear();
    if (++of_node > per_node_) failure = failures_.erase(failure);
  }
  if (failures_.size() == kKept) failures_.erase(failures_.begin());
  failures_.push_back({.node = node, .text = text.substr(0, kTextBytesMax), .when = now});
}

NodeFailures::Count NodeFailures::of(TimePoint now, const Node& node) const {
  Count count;
  for (const Failure& failure : failures_) {
    if (now - failure.when >= kWindow || !is_same(failure.node, node)) continue;
    ++count.failures;
    count.last = failure.text;
  }
  return count;
}

std::vector<NodeFailureRecord> NodeFailures::records(TimePoint now) const {
  std::vector<NodeFailureRecord> records;
  for (const Failure& failure : failures_) {
    if (now - failure.when >= kWindow) continue;
    records.push_back({.node_id = failure.node.node_id,
                       .host = failure.node.host,
                       .node_rank = failure.node.node_rank,
                       .shares_its_host = failure.node.shares_its_host,
                       .age_ms = std::chrono::duration_cast<Duration>(now - failure.when).count(),
                       .text = failure.text});
  }
  return records;
}

void NodeFailures::restore(TimePoint now, const std::vector<NodeFailureRecord>& records) {
  failures_.clear();
  for (const NodeFailureRecord& record : records) {
    failures_.push_back({.node = {.node_id = record.node_id,
                                  .host = record.host,
                                  .node_rank = record.node_rank,
                                  .shares_its_host = record.shares_its_host},
                         .text = record.text,
                         .when = now - Duration{record.age_ms}});
  }
}

}  // namespace ddp::rendezvous
