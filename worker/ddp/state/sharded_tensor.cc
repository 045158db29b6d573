#include "worker/ddp/state/sharded_tensor.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "common/base/check.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

void append(std::vector<std::byte>& to, const at::Tensor& own) {
  const at::Tensor part = own.detach().cpu().contiguous();
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

ShardedTensor divided_along(std::int64_t dim, const at::Tensor& local, std::int64_t begin,
                            const std::vector<std::int64_t>& rows, at::IntArrayRef sizes) {
  const at::Tensor whole =
      at::empty(sizes, at::TensorOptions(local.scalar_type()).device(at::kMeta));
  const std::int64_t row = whole.size(dim) > 0 ? whole.numel() / whole.size(dim) : 0;
  ShardedTensor parts;
  // A row is in one piece where the dimension that is divided comes first.
  parts.like = whole.movedim(dim, 0).contiguous().movedim(0, dim);
  for (const std::int64_t count : rows) {
    parts.counts.push_back(static_cast<std::size_t>(count * row));
  }
  parts.own = local.movedim(dim, 0);
  parts.begin = static_cast<std::size_t>(begin * row);
  return parts;
}

at::Tensor own_part_of(const at::Tensor& whole, const ShardedTensor& parts) {
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> order(static_cast<std::size_t>(whole.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return parts.like.stride(a) > parts.like.stride(b);
  });
  const at::Tensor in_memory = whole.permute(order);
  const at::Tensor part =
      in_memory.reshape(-1).narrow(0, static_cast<std::int64_t>(parts.begin), parts.own.numel());
  // Where the order took a copy of the whole, the part alone is kept.
  return (in_memory.is_contiguous() ? part : part.clone()).view(parts.own.sizes());
}

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
      const std::size_t bytes =
          one.tensor.counts[static_cast<std::size_t>(group.rank())] * element_bytes(one.tensor);
      if (bytes == 0) continue;
      DDP_CHECK(one.tensor.own.nbytes() == bytes, "a part of {} bytes instead of {}",
                one.tensor.own.nbytes(), bytes);
      append(given, one.tensor.own);
      give_counts[rank] += bytes;
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
