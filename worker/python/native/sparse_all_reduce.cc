#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "worker/python/native/backend.h"
#include "worker/python/native/interruptible.h"

namespace ddp::python {
namespace {

// Every rank's rows, one rank behind the other. `counts`: the number of rows by rank.
at::Tensor gather_rows(runtime::Group& group, const at::Tensor& rows,
                       const std::vector<std::int64_t>& counts, const OpOptions& options) {
  std::vector<std::int64_t> sizes = rows.sizes().vec();
  sizes[0] = 0;
  std::int64_t row_bytes = rows.element_size();
  for (std::size_t dim = 1; dim < sizes.size(); ++dim) row_bytes *= sizes[dim];
  std::vector<std::size_t> shares;
  for (const std::int64_t count : counts) {
    sizes[0] += count;
    shares.push_back(static_cast<std::size_t>(count * row_bytes));
  }
  const at::Tensor all = at::empty(sizes, rows.options());
  group.all_gatherv({rows.data_ptr(), rows.nbytes(), DType::kU8},
                    {all.data_ptr(), all.nbytes(), DType::kU8}, shares, options);
  return all;
}

}  // namespace

// The ranks exchange how many entries they have, then their indices and values; each adds them up
// in the order of the ranks. Runs in the call itself: the number of entries is known only halfway.
DdpBackend::WorkHandle DdpBackend::allreduce_sparse(Tensors& tensors,
                                                    const c10d::AllreduceOptions& options) {
  const Operands operands("all_reduce of a sparse tensor");
  operands.require_one(tensors);
  operands.require(options.reduceOp == c10d::ReduceOp::SUM, "only SUM is possible");
  operands.require(tensors[0].is_sparse() && tensors[0].device().is_cpu(),
                   "the tensor is not a sparse one on the CPU");
  const at::NoGradGuard no_grad;
  const at::Tensor own = tensors[0].coalesce();
  const at::Tensor indices = own.indices().t().contiguous();
  const at::Tensor values = own.values().contiguous();
  const auto group = live().host;
  OpOptions each;
  each.timeout = options.timeout.count() > 0 ? options.timeout : timeout_.load();
  each.synchronous = true;
  each.tag = "sparse";
  std::int64_t count = values.size(0);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(size_));
  at::Tensor all_indices;
  at::Tensor all_values;
  interruptible([&] {
    group->all_gather({&count, 1, DType::kI64}, {&counts[0], counts.size(), DType::kI64}, each);
    all_indices = gather_rows(*group, indices, counts, each);
    all_values = gather_rows(*group, values, counts, each);
  });
  const at::Tensor sum =
      at::sparse_coo_tensor(all_indices.t(), all_values, own.sizes(), own.options()).coalesce();
  tensors[0].copy_(sum);
  auto work = c10::make_intrusive<BackendWork>(
      rank_, c10d::OpType::_ALLREDUCE_SPARSE, "ddp:all_reduce_sparse", sequence_++,
      Operands("all_reduce"), std::vector<Tensors>{tensors});
  work->finish_now();
  return work;
}

}  // namespace ddp::python
