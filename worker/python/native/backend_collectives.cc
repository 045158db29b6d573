#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "worker/python/native/backend.h"

// The collectives of DdpBackend: each turns tensors into buffers and says which operation it is.
namespace ddp::python {
namespace {

using c10d::OpType;

// PyTorch 2.6 does not say it for every operation.
template <typename CallOptions>
bool is_async(const CallOptions& options) {
  if constexpr (requires { options.asyncOp; }) {
    return options.asyncOp;
  } else {
    return true;
  }
}

std::vector<std::size_t> counts_of(const Operands& operands, const std::vector<at::Tensor>& list) {
  std::vector<std::size_t> counts;
  for (const at::Tensor& tensor : list) counts.push_back(operands.count_of(tensor));
  return counts;
}

void require_first(const Operands& operands, std::int64_t root_tensor) {
  operands.require(root_tensor == 0,
                   fmt::format("invalid root tensor {}: there is one tensor", root_tensor));
}

// Of gather and scatter, whose blocks all have the size of the one that a rank gives or gets.
void require_blocks(const Operands& operands, const char* what, const std::vector<at::Tensor>& list,
                    const char* own_what, const at::Tensor& own) {
  for (std::size_t rank = 0; rank < list.size(); ++rank) {
    operands.require(list[rank].numel() == own.numel(),
                     fmt::format("the {} for rank {} has {} elements, the {} of this rank {}; all "
                                 "must have equally many",
                                 what, rank, list[rank].numel(), own_what, own.numel()));
  }
}

bool are_equal(const std::vector<std::size_t>& counts) {
  return std::all_of(counts.begin(), counts.end(),
                     [&](std::size_t count) { return count == counts.front(); });
}

}  // namespace

DdpBackend::WorkHandle DdpBackend::broadcast(Tensors& tensors,
                                             const c10d::BroadcastOptions& options) {
  Operands operands("broadcast");
  operands.require_one(tensors);
  require_first(operands, options.rootTensor);
  const auto root = static_cast<Rank>(options.rootRank);
  const Buffer buffer = root == rank_ ? operands.input(tensors[0]) : operands.output(tensors[0]);
  return run({OpType::BROADCAST, "ddp:broadcast", options.timeout, is_async(options)},
             std::move(operands), {tensors}, {[=](ProcessGroup& group, OpOptions each) {
               return group.broadcast(buffer, root, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::allreduce(Tensors& tensors,
                                             const c10d::AllreduceOptions& options) {
  Operands operands("all_reduce");
  operands.require_one(tensors);
  if (tensors[0].defined() && tensors[0].is_sparse()) return allreduce_sparse(tensors, options);
  operands.reduces(tensors[0], options.reduceOp, size_);
  const Buffer buffer = operands.in_out(tensors[0]);
  const ReduceOp op = operands.reduction();
  return run({OpType::ALLREDUCE, "ddp:all_reduce", options.timeout, is_async(options)},
             std::move(operands), {tensors}, {[=](ProcessGroup& group, OpOptions each) {
               return group.all_reduce(buffer, op, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  Operands operands("all_reduce_coalesced");
  operands.require(!tensors.empty(), "there is no tensor");
  operands.reduces(tensors[0], options.reduceOp, size_);
  std::vector<Buffer> buffers;
  for (const at::Tensor& tensor : tensors) buffers.push_back(operands.in_out(tensor));
  const ReduceOp op = operands.reduction();
  return run({OpType::ALLREDUCE_COALESCED, "ddp:all_reduce", options.timeout, is_async(options)},
             std::move(operands), {tensors}, {[=](ProcessGroup& group, OpOptions each) {
               return group.all_reduce_coalesced(buffers, op, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  Operands operands("reduce");
  operands.require_one(tensors);
  require_first(operands, options.rootTensor);
  operands.reduces(tensors[0], options.reduceOp, size_);
  const auto root = static_cast<Rank>(options.rootRank);
  const Buffer buffer = root == rank_ ? operands.in_out(tensors[0]) : operands.input(tensors[0]);
  const ReduceOp op = operands.reduction();
  return run({OpType::REDUCE, "ddp:reduce", options.timeout, is_async(options)},
             std::move(operands), {tensors}, {[=](ProcessGroup& group, OpOptions each) {
               return group.reduce(buffer, root, op, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& options) {
  Operands operands("all_gather");
  operands.require_one(inputs);
  operands.require(outputs.size() == 1, "takes one list of outputs");
  operands.require_length(outputs[0].size(), size_, "the output");
  const Buffer in = operands.input(inputs[0]);
  const Buffer out = operands.outputs(outputs[0]);
  const at::Tensor& own = outputs[0][static_cast<std::size_t>(rank_)];
  operands.require(own.numel() == inputs[0].numel(),
                   fmt::format("the output for rank {}, this one, has {} elements, the input {}",
                               rank_, own.numel(), inputs[0].numel()));
  const std::vector<std::size_t> counts = counts_of(operands, outputs[0]);
  return run({OpType::ALLGATHER, "ddp:all_gather", options.timeout, is_async(options)},
             std::move(operands), outputs, {[=](ProcessGroup& group, OpOptions each) {
               return are_equal(counts) ? group.all_gather(in, out, std::move(each))
                                        : group.all_gatherv(in, out, counts, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                   const c10d::AllgatherOptions& options) {
  Operands operands("all_gather_into_tensor");
  const Buffer in = operands.input(input);
  const Buffer out = operands.output(output);
  operands.require(output.numel() == input.numel() * size_,
                   fmt::format("the output has {} elements; {} ranks with {} elements need {}",
                               output.numel(), size_, input.numel(), input.numel() * size_));
  return run({OpType::_ALLGATHER_BASE, "ddp:_all_gather_base", options.timeout, is_async(options)},
             std::move(operands), {{output}}, {[=](ProcessGroup& group, OpOptions each) {
               return group.all_gather(in, out, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::allgather_coalesced(std::vector<Tensors>& outputs,
                                                       Tensors& inputs,
                                                       const c10d::AllgatherOptions& options) {
  Operands checks("all_gather_coalesced");
  checks.require_length(outputs.size(), size_, "the output");
  std::vector<WorkHandle> works;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensors list;
    for (const Tensors& of_rank : outputs) {
      checks.require(of_rank.size() == inputs.size(),
                     "a list of outputs has another length than the inputs");
      list.push_back(of_rank[i]);
    }
    std::vector<Tensors> lists{std::move(list)};
    Tensors input{inputs[i]};
    works.push_back(allgather(lists, input, options));
  }
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(works));
}

DdpBackend::WorkHandle DdpBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  Operands("all_gather_into_tensor_coalesced")
      .require(outputs.size() == inputs.size(), "there are not as many outputs as inputs");
  std::vector<WorkHandle> works;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_allgather_base(outputs[i], inputs[i], options));
  }
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(works));
}

DdpBackend::WorkHandle DdpBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::GatherOptions& options) {
  Operands operands("gather");
  operands.require_one(inputs);
  const auto root = static_cast<Rank>(options.rootRank);
  const Buffer in = operands.input(inputs[0]);
  Buffer out = operands.nothing();
  if (root == rank_) {
    operands.require(outputs.size() == 1, "the root must give one list of outputs");
    operands.require_length(outputs[0].size(), size_, "the output");
    out = operands.outputs(outputs[0]);
    require_blocks(operands, "output", outputs[0], "input", inputs[0]);
  } else {
    operands.require(outputs.empty(), "only the root gives outputs");
  }
  return run({OpType::GATHER, "ddp:gather", options.timeout, is_async(options)},
             std::move(operands), outputs, {[=](ProcessGroup& group, OpOptions each) {
               return group.gather(in, out, root, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                      const c10d::GatherOptions& options) {
  Operands operands("gather_into_tensor");
  const auto root = static_cast<Rank>(options.rootRank);
  const Buffer in = operands.input(input);
  const Buffer out = root == rank_ ? operands.output(output) : operands.nothing();
  return run({OpType::GATHER, "ddp:gather", options.timeout, is_async(options)},
             std::move(operands), {{output}}, {[=](ProcessGroup& group, OpOptions each) {
               return group.gather(in, out, root, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                           const c10d::ScatterOptions& options) {
  Operands operands("scatter");
  operands.require_one(outputs);
  const auto root = static_cast<Rank>(options.rootRank);
  const Buffer out = operands.output(outputs[0]);
  Buffer in = operands.nothing();
  if (root == rank_) {
    operands.require(inputs.size() == 1, "the root must give one list of inputs");
    operands.require_length(inputs[0].size(), size_, "the input");
    in = operands.inputs(inputs[0]);
    require_blocks(operands, "input", inputs[0], "output", outputs[0]);
  } else {
    operands.require(inputs.empty(), "only the root gives inputs");
  }
  return run({OpType::SCATTER, "ddp:scatter", options.timeout, is_async(options)},
             std::move(operands), {outputs}, {[=](ProcessGroup& group, OpOptions each) {
               return group.scatter(in, out, root, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                  const c10d::ReduceScatterOptions& options) {
  Operands operands("reduce_scatter");
  operands.require_one(outputs);
  operands.require(inputs.size() == 1, "takes one list of inputs");
  operands.require_length(inputs[0].size(), size_, "the input");
  operands.reduces(outputs[0], options.reduceOp, size_);
  const ReduceOp op = operands.reduction();
  const Call call{OpType::REDUCE_SCATTER, "ddp:reduce_scatter", options.timeout, is_async(options)};
  const std::vector<std::size_t> counts = counts_of(operands, inputs[0]);
  operands.require(counts[static_cast<std::size_t>(rank_)] == operands.count_of(outputs[0]),
                   "the input for this rank has another number of elements than the output");
  if (are_equal(counts)) {
    const Buffer in = operands.inputs(inputs[0]);
    const Buffer out = operands.output(outputs[0]);
    return run(call, std::move(operands), {outputs}, {[=](ProcessGroup& group, OpOptions each) {
                 return group.reduce_scatter(in, out, op, std::move(each));
               }});
  }
  // Each rank's part to its rank. The root reduces in its output.
  std::vector<Issue> issues;
  for (Rank root = 0; root < size_; ++root) {
    const at::Tensor& part = inputs[0][static_cast<std::size_t>(root)];
    const Buffer buffer =
        root == rank_ ? operands.in_out_with(outputs[0], part) : operands.input(part);
    issues.push_back([=](ProcessGroup& group, OpOptions each) {
      return group.reduce(buffer, root, op, std::move(each));
    });
  }
  return run(call, std::move(operands), {outputs}, issues);
}

DdpBackend::WorkHandle DdpBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::ReduceScatterOptions& options) {
  Operands operands("reduce_scatter_tensor");
  operands.reduces(output, options.reduceOp, size_);
  const Buffer in = operands.input(input);
  const Buffer out = operands.output(output);
  operands.require(input.numel() == output.numel() * size_,
                   fmt::format("the input has {} elements; {} ranks with {} elements need {}",
                               input.numel(), size_, output.numel(), output.numel() * size_));
  const ReduceOp op = operands.reduction();
  return run({OpType::_REDUCE_SCATTER_BASE, "ddp:_reduce_scatter_base", options.timeout,
              is_async(options)},
             std::move(operands), {{output}}, {[=](ProcessGroup& group, OpOptions each) {
               return group.reduce_scatter(in, out, op, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  Operands("reduce_scatter_tensor_coalesced")
      .require(outputs.size() == inputs.size(), "there are not as many outputs as inputs");
  std::vector<WorkHandle> works;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_reduce_scatter_base(outputs[i], inputs[i], options));
  }
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(works));
}

// Buffer elements of each rank's rows. Without sizes, equal ones.
std::vector<std::size_t> DdpBackend::split_counts(const Operands& operands,
                                                  const at::Tensor& tensor,
                                                  const std::vector<std::int64_t>& sizes,
                                                  const char* what) const {
  operands.require(tensor.dim() > 0, fmt::format("the {} has no dimension to split", what));
  const std::int64_t rows = tensor.size(0);
  std::vector<std::int64_t> split = sizes;
  if (split.empty()) {
    operands.require(rows % size_ == 0,
                     fmt::format("the {} rows of the {} cannot be divided equally among {} ranks; "
                                 "give split sizes",
                                 rows, what, size_));
    split.assign(static_cast<std::size_t>(size_), rows / size_);
  }
  operands.require(split.size() == static_cast<std::size_t>(size_),
                   fmt::format("{} split sizes of the {} for {} ranks", split.size(), what, size_));
  std::int64_t total = 0;
  std::vector<std::size_t> counts;
  for (const std::int64_t size : split) {
    operands.require(size >= 0, fmt::format("a split size of the {} is {}", what, size));
    total += size;
    const std::int64_t elements = rows == 0 ? 0 : size * (tensor.numel() / rows);
    counts.push_back(static_cast<std::size_t>(elements) * operands.scale());
  }
  operands.require(total == rows, fmt::format("the split sizes of the {} add up to {}, not to its "
                                              "{} rows",
                                              what, total, rows));
  return counts;
}

DdpBackend::WorkHandle DdpBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                 std::vector<std::int64_t>& output_split_sizes,
                                                 std::vector<std::int64_t>& input_split_sizes,
                                                 const c10d::AllToAllOptions& options) {
  Operands operands("all_to_all_single");
  const Buffer in = operands.input(input);
  const Buffer out = operands.output(output);
  const auto in_counts = split_counts(operands, input, input_split_sizes, "input");
  const auto out_counts = split_counts(operands, output, output_split_sizes, "output");
  const bool is_even = output_split_sizes.empty() && input_split_sizes.empty();
  return run({OpType::ALLTOALL_BASE, "ddp:all_to_all", options.timeout, is_async(options)},
             std::move(operands), {{output}}, {[=](ProcessGroup& group, OpOptions each) {
               return is_even ? group.all_to_all(in, out, std::move(each))
                              : group.all_to_allv(in, in_counts, out, out_counts, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                            const c10d::AllToAllOptions& options) {
  Operands operands("all_to_all");
  operands.require_length(outputs.size(), size_, "the output");
  operands.require_length(inputs.size(), size_, "the input");
  const Buffer in = operands.inputs(inputs);
  const Buffer out = operands.outputs(outputs);
  const auto in_counts = counts_of(operands, inputs);
  const auto out_counts = counts_of(operands, outputs);
  // Whether all blocks of all ranks are equal cannot be told from those of one rank.
  return run({OpType::ALLTOALL, "ddp:all_to_all", options.timeout, is_async(options)},
             std::move(operands), {outputs}, {[=](ProcessGroup& group, OpOptions each) {
               return group.all_to_allv(in, in_counts, out, out_counts, std::move(each));
             }});
}

DdpBackend::WorkHandle DdpBackend::barrier(const c10d::BarrierOptions& options) {
  return run({OpType::BARRIER, "ddp:barrier", options.timeout, is_async(options)},
             Operands("barrier"), {},
             {[](ProcessGroup& group, OpOptions each) { return group.barrier(std::move(each)); }});
}

}  // namespace ddp::python
