#include "worker/collectives/cut.h"

#include "worker/collectives/tree_order.h"
#include "worker/transport/segment_layout.h"

namespace ddp::collectives {
namespace {

// So that inputs and results of all slots fit into a second-level cache.
constexpr std::size_t kMemoryChunkBytes = 128u << 10;
// The size of a piece on a link: large enough for few system calls, small enough for the stages to
// overlap.
constexpr std::size_t kLinkPieceBytes = 512u << 10;
constexpr std::size_t kSwapPieceBytes = 1u << 20;  // If there is no second trip.
constexpr std::size_t kGrainBytes = 64;
static_assert(kMemoryChunkBytes <= transport::kSlotBytes);

std::size_t index(int number) { return static_cast<std::size_t>(number); }

std::size_t round_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

std::size_t chunk_bytes(const transport::Topology& topology, bool swap) {
  if (topology.nodes() == 1) return kMemoryChunkBytes;
  // The same on all nodes, wherever their buffers lie.
  const bool lone_ranks = topology.world_size() == topology.nodes();
  if (lone_ranks && swap) return kSwapPieceBytes;
  if (lone_ranks) return kLinkPieceBytes * index(topology.nodes());
  return transport::kSlotBytes;
}

}  // namespace

DType partial_type_of(const OpRecord& record, const transport::Topology& topology) {
  const auto type = static_cast<DType>(record.type);
  const bool inputs = topology.nodes() == topology.world_size() &&
                      static_cast<ReduceOp::Kind>(record.op) != ReduceOp::kPremulSum;
  return inputs ? type : accumulator_of(type);
}

Cut::Cut(const OpRecord& record, const transport::Topology& topology, bool swap)
    : topology_(topology), kind_(record.kind), swap_(swap), columns_(record.count) {
  const std::size_t element = dtype_bytes(static_cast<DType>(record.type));
  grain_ = kGrainBytes / element;
  width_ = chunk_bytes(topology, swap) / element;
  if (scattered()) {
    rows_ = index(topology.world_size());
    width_ = std::max<std::size_t>(1, width_ / rows_);
    if (width_ > grain_) width_ -= width_ % grain_;
  }
  chunks_ = (columns_ + width_ - 1) / width_;
  if (kind_ == OpKind::kReduce) {
    root_node_ = topology.node_of(record.root);
    if (topology.nodes() > 1) plan_share(record);
  }
}

void Cut::plan_share(const OpRecord& record) {
  const auto type = static_cast<DType>(record.type);
  const auto a_of = [&](int node) {
    const Rank first = topology_.first(node);
    return subtrees_of(first, first + topology_.local_size(node), topology_.world_size()).size() *
           dtype_bytes(partial_type_of(record, topology_)) / dtype_bytes(type);
  };
  const std::size_t others = index(topology_.nodes() - 1);
  const std::size_t of_root = a_of(root_node_);
  std::size_t into_root = 0;
  for (int node = 0; node < topology_.nodes(); ++node) {
    if (node != root_node_) into_root += a_of(node);
  }
  if (into_root == 1) {
    share_numerator_ = 1;
    return;
  }
  // The traffic into the root's node, 1 + (into_root - 1) x, grows with x; the traffic that must
  // not exceed it falls with x. Choose the smallest x that satisfies all: the largest of the
  // crossings.
  share_numerator_ = of_root - 1;
  share_denominator_ = of_root + into_root - 1;
  for (int node = 0; node < topology_.nodes(); ++node) {
    if (node == root_node_) continue;
    const std::size_t into_it = into_root + of_root - a_of(node);
    const std::size_t numerator = into_it - others;
    const std::size_t denominator = into_it + (into_root - 1) * others;
    if (numerator * share_denominator_ <= share_numerator_ * denominator) continue;
    share_numerator_ = numerator;
    share_denominator_ = denominator;
  }
}

std::size_t Cut::share(std::size_t elements) const {
  return std::min(elements, round_up(elements * share_numerator_ / share_denominator_, grain_));
}

Slice Cut::area(std::size_t chunk, int area) const {
  if (!scattered()) return {0, elements(chunk)};
  const std::size_t columns = width(chunk);
  const std::size_t begin = index(topology_.first(area)) * columns;
  return {begin, begin + index(topology_.local_size(area)) * columns};
}

Slice Cut::slice(std::size_t chunk, int number, int lane) const {
  const int lanes = topology_.lanes();
  if (!scattered()) return slice_of(elements(chunk), lane, lanes, grain_);
  const Slice whole = area(chunk, number);
  const bool a_row_each = topology_.local_size(number) == lanes;
  const Slice within = slice_of(whole.size(), lane, lanes, a_row_each ? 1 : grain_);
  return {whole.begin + within.begin, whole.begin + within.end};
}

Slice Cut::part(std::size_t chunk, int lane, int node) const {
  if (scattered()) return slice(chunk, node, lane);
  const Slice own = slice(chunk, 0, lane);
  if (swap_) return own;
  if (root_node_ < 0) {
    const Slice within = slice_of(own.size(), node, topology_.nodes(), grain_);
    return {own.begin + within.begin, own.begin + within.end};
  }
  const std::size_t begin = own.begin + share(own.size());
  if (node == root_node_) return {own.begin, begin};
  const Slice within =
      slice_of(own.end - begin, node < root_node_ ? node : node - 1, topology_.nodes() - 1, grain_);
  return {begin + within.begin, begin + within.end};
}

Slice Cut::result(std::size_t chunk, Rank rank) const {
  if (!scattered()) return {0, elements(chunk)};
  const std::size_t columns = width(chunk);
  return {index(rank) * columns, index(rank + 1) * columns};
}

std::size_t Cut::most_in_part(int node) const {
  const std::size_t lanes = index(topology_.lanes());
  const std::size_t columns = std::min(width_, columns_);
  if (scattered()) return round_up(index(topology_.local_size(node)) * columns / lanes + 1, grain_);
  const std::size_t slice = round_up(columns / lanes + 1, grain_);
  if (swap_) return slice;
  const std::size_t nodes = index(topology_.nodes());
  if (root_node_ < 0) return round_up(slice / nodes + 1, grain_);
  if (node == root_node_) return round_up(share(slice) + 1, grain_);
  const std::size_t rest = slice * (share_denominator_ - share_numerator_) / share_denominator_ + 1;
  return round_up(rest / (nodes - 1) + 1, grain_);
}

}  // namespace ddp::collectives
