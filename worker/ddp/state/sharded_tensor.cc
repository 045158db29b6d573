#include "worker/ddp/state/sharded_tensor.h"

#include <cstring>

#include <ATen/ATen.h>

#include "common/base/check.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

void append(std::vector<std::byte>& to, const at::Tensor& part) {
  const auto* bytes = static_cast<const std::byte*>(part.data_ptr());
  to.insert(to.end(), bytes, bytes + part.nbytes());
}

std::size_t element_bytes(const ShardedTensor& tensor) {
  return at::elementSize(tensor.own.scalar_type());
}

// The parts that have come, rank by rank, each to be read on from where the last one ended.
using Cursors = std::vector<const std::byte*>;

at::Tensor put_together(const ShardedTensor& parts, Cursors& received) {
  at::Tensor whole = at::empty_strided(parts.like.sizes(), packed_strides(parts.like),
                                       at::TensorOptions(parts.own.scalar_type()));
  auto* to = static_cast<std::byte*>(whole.data_ptr());
  for (std::size_t rank = 0; rank < parts.counts.size(); ++rank) {
    const std::size_t bytes = parts.counts[rank] * element_bytes(parts);
    if (bytes > 0) std::memcpy(to, received[rank], bytes);
    received[rank] += bytes;
    to += bytes;
  }
  if (parts.common.defined() && parts.common.numel() > 0)
    std::memcpy(to, parts.common.data_ptr(), parts.common.nbytes());
  return whole;
}

}  // namespace

std::vector<at::Tensor> gather_whole(const std::vector<WantedWhole>& wanted, ProcessGroup& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<std::byte> given;
  std::vector<std::size_t> give_counts(ranks);
  std::vector<std::size_t> get_counts(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (const WantedWhole& one : wanted) {
      if (one.rank != static_cast<Rank>(rank)) continue;
      DDP_CHECK(one.tensor.counts.size() == ranks, "{} parts of {} ranks", one.tensor.counts.size(),
                ranks);
      append(given, one.tensor.own);
      give_counts[rank] += one.tensor.own.nbytes();
    }
  }
  std::size_t all = 0;
  for (const WantedWhole& one : wanted) {
    if (one.rank != group.rank()) continue;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::size_t bytes = one.tensor.counts[rank] * element_bytes(one.tensor);
      get_counts[rank] += bytes;
      all += bytes;
    }
  }
  std::vector<std::byte> got(all);
  group
      .all_to_allv({given.data(), given.size(), DType::kU8}, give_counts,
                   {got.data(), got.size(), DType::kU8}, get_counts, {{}, "sharded tensors"})
      ->wait();
  Cursors received;
  std::size_t begin = 0;
  for (const std::size_t count : get_counts) {
    received.push_back(got.data() + begin);
    begin += count;
  }
  std::vector<at::Tensor> whole;
  for (const WantedWhole& one : wanted) {
    whole.push_back(one.rank == group.rank() ? put_together(one.tensor, received) : at::Tensor());
  }
  return whole;
}

}  // namespace ddp
