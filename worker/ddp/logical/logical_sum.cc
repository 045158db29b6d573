#include "worker/ddp/logical/logical_sum.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "common/base/check.h"
#include "worker/collectives/choice.h"
#include "worker/collectives/kernels.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

// Of all partial sums together, which bounds what gathering takes beside them.
constexpr std::size_t kGatheredBytes = std::size_t{8} << 20;

// Elements of a reduction over the group that are not summed in a ring.
std::size_t most_at_once(const ProcessGroup& group, DType type) {
  const collectives::CostTable costs;
  if (group.size() < costs.ring_from_nodes) return std::numeric_limits<std::size_t>::max();
  return costs.ring_from_bytes / 2 / dtype_bytes(type);
}

// How many nodes of the tree over `tree` end with each of its ranks.
void count_nodes(RankRange tree, int first, std::vector<int>& nodes) {
  if (tree.size() == 1) return;
  const int middle = tree_middle(tree.begin, tree.end);
  count_nodes({tree.begin, middle}, first, nodes);
  count_nodes({middle, tree.end}, first, nodes);
  ++nodes[static_cast<std::size_t>(tree.end - 1 - first)];
}

}  // namespace

LogicalSum::LogicalSum(const LogicalWorld& world, std::shared_ptr<ProcessGroup> group,
                       std::size_t count, at::ScalarType type)
    : world_(world),
      group_(std::move(group)),
      count_(count),
      scalar_type_(type),
      type_(type == at::kDouble ? DType::kF64 : DType::kF32) {
  DDP_CHECK(type == at::kFloat || type == at::kDouble, "element type {}", type_name(type));
  DDP_CHECK(group_->size() == world.workers(), "{} workers in a group of {}", world.workers(),
            group_->size());
  const RankRange own = world_.own();
  combines_.resize(static_cast<std::size_t>(own.size()));
  for (const RankRange& tree : world_.subtrees(group_->rank())) {
    count_nodes(tree, own.begin, combines_);
  }
  for (Rank worker = 0; worker < world_.workers(); ++worker) {
    const RankRanges subtrees = world_.subtrees(worker);
    subtrees_.insert(subtrees_.end(), subtrees.begin(), subtrees.end());
    subtrees_of_.push_back(subtrees.size());
  }
}

const at::Tensor& LogicalSum::next() {
  if (partial_sums_ == levels_.size()) {
    const auto elements = static_cast<std::int64_t>(count_);
    levels_.push_back(levels_.empty() ? registered_zeros(*group_, elements, scalar_type_)
                                      : at::empty({elements}, at::TensorOptions(scalar_type_)));
  }
  return levels_[partial_sums_];
}

void LogicalSum::add() {
  if (added_ == combines_.size()) {
    throw std::logic_error(fmt::format(
        "all {} logical ranks of this worker were added; average() comes next", added_));
  }
  next();
  ++partial_sums_;
  for (int node = 0; node < combines_[added_]; ++node) combine();
  ++added_;
}

// The last two partial sums become one.
void LogicalSum::combine() {
  static constexpr std::array<RankRange, 2> kPair = {RankRange{0, 1}, RankRange{1, 2}};
  --partial_sums_;
  const std::array<const std::byte*, 2> sources = {bytes_at(partial_sums_ - 1, 0),
                                                   bytes_at(partial_sums_, 0)};
  const std::array<std::byte*, 1> target = {bytes_at(partial_sums_ - 1, 0)};
  const collectives::FloatEnvironment ieee;
  collectives::reduce({.in = type_, .out = type_}, kPair, sources, target, count_);
}

const at::Tensor& LogicalSum::average(const SharedText& tag) {
  if (added_ != combines_.size()) {
    throw std::logic_error(fmt::format("{} of the {} logical ranks of this worker were added",
                                       added_, combines_.size()));
  }
  restart();
  if (world_.workers() == 1) {
    divide();
  } else if (world_.reduces_in_order()) {
    reduce_over_group(tag);
  } else {
    gather_and_combine(tag);
  }
  return levels_.front();
}

void LogicalSum::restart() {
  added_ = 0;
  partial_sums_ = 0;
}

void LogicalSum::reduce_over_group(const SharedText& tag) {
  const bool is_group_average = world_.workers() == world_.size();
  const ReduceOp op = is_group_average ? ReduceOp::kAvg : ReduceOp::kSum;
  const std::size_t most = most_at_once(*group_, type_);
  std::vector<WorkPtr> works;
  for (std::size_t at = 0; at < count_; at += std::min(most, count_ - at)) {
    works.push_back(
        group_->all_reduce({bytes_at(0, at), std::min(most, count_ - at), type_}, op, {{}, tag}));
  }
  try {
    for (const WorkPtr& work : works) work->wait();
  } catch (...) {
    for (WorkPtr& work : works) wait_quietly(work);  // They use this object's memory.
    throw;
  }
  if (!is_group_average) divide();
}

void LogicalSum::gather_and_combine(const SharedText& tag) {
  const std::size_t size = dtype_bytes(type_);
  const std::size_t most =
      std::max<std::size_t>(kGatheredBytes / size / subtrees_.size(), std::size_t{1});
  const std::size_t own = subtrees_of_[static_cast<std::size_t>(group_->rank())];
  std::vector<std::size_t> counts(subtrees_of_.size());
  std::vector<const std::byte*> sources(subtrees_.size());
  const collectives::FloatEnvironment ieee;
  for (std::size_t at = 0; at < count_; at += most) {
    const std::size_t elements = std::min(most, count_ - at);
    sent_.resize(own * elements * size);
    for (std::size_t level = 0; level < own; ++level) {
      std::memcpy(sent_.data() + level * elements * size, bytes_at(level, at), elements * size);
    }
    std::transform(subtrees_of_.begin(), subtrees_of_.end(), counts.begin(),
                   [&](std::size_t subtrees) { return subtrees * elements; });
    received_.resize(subtrees_.size() * elements * size);
    group_
        ->all_gatherv({sent_.data(), own * elements, type_},
                      {received_.data(), subtrees_.size() * elements, type_}, counts, {{}, tag})
        ->wait();
    for (std::size_t i = 0; i < sources.size(); ++i) {
      sources[i] = received_.data() + i * elements * size;
    }
    const std::array<std::byte*, 1> target = {bytes_at(0, at)};
    collectives::reduce({.in = type_, .out = type_, .op = ReduceOp::kAvg, .divisor = world_.size()},
                        subtrees_, sources, target, elements);
  }
}

// As the last step of an average over a group does.
void LogicalSum::divide() {
  const std::array<RankRange, 1> all = {RankRange{0, world_.size()}};
  const std::array<const std::byte*, 1> source = {bytes_at(0, 0)};
  const std::array<std::byte*, 1> target = {bytes_at(0, 0)};
  const collectives::FloatEnvironment ieee;
  collectives::reduce({.in = type_, .out = type_, .op = ReduceOp::kAvg, .divisor = world_.size()},
                      all, source, target, count_);
}

std::byte* LogicalSum::bytes_at(std::size_t level, std::size_t element) const {
  return static_cast<std::byte*>(levels_[level].data_ptr()) + element * dtype_bytes(type_);
}

}  // namespace ddp
