#include "worker/ddp/tensors/tensor_collectives.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "worker/ddp/tensors/tensor_call.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

// The reduction of the bytes 0 and 1 that means the same for false and true.
ReduceOp reduction_of(const at::Tensor& tensor, ReduceOp op) {
  const bool truths = tensor.defined() && tensor.scalar_type() == at::kBool;
  return truths && op.kind() == ReduceOp::kSum ? ReduceOp(ReduceOp::kMax) : op;
}

std::vector<std::size_t> counts_of(const std::vector<at::Tensor>& list) {
  std::vector<std::size_t> counts;
  for (const at::Tensor& tensor : list) counts.push_back(static_cast<std::size_t>(tensor.numel()));
  return counts;
}

bool are_equal(const std::vector<std::size_t>& counts) {
  return std::all_of(counts.begin(), counts.end(),
                     [&](std::size_t count) { return count == counts.front(); });
}

// Elements of each rank's rows. Without sizes, equal ones.
std::vector<std::size_t> split_counts(const TensorCall& call, const at::Tensor& tensor,
                                      const char* argument, const std::vector<std::int64_t>& sizes,
                                      int ranks) {
  call.require(tensor.dim() > 0, fmt::format("{} has no dimension to split", argument));
  const std::int64_t rows = tensor.size(0);
  std::vector<std::int64_t> split = sizes;
  if (split.empty()) {
    call.require(rows % ranks == 0, fmt::format("the {} rows of {} cannot be divided equally among "
                                                "{} ranks; give split sizes",
                                                rows, argument, ranks));
    split.assign(static_cast<std::size_t>(ranks), rows / ranks);
  }
  call.require(split.size() == static_cast<std::size_t>(ranks),
               fmt::format("{} split sizes of {} for {} ranks", split.size(), argument, ranks));
  std::int64_t total = 0;
  std::vector<std::size_t> counts;
  for (const std::int64_t size : split) {
    call.require(size >= 0, fmt::format("a split size of {} is {}", argument, size));
    total += size;
    counts.push_back(static_cast<std::size_t>(rows == 0 ? 0 : size * (tensor.numel() / rows)));
  }
  call.require(total == rows, fmt::format("the split sizes of {} add up to {}, it has {} rows",
                                          argument, total, rows));
  return counts;
}

std::vector<Rank> ascending(const char* operation, std::vector<Rank> ranks, int size) {
  std::sort(ranks.begin(), ranks.end());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size) {
      throw std::invalid_argument(
          fmt::format("{}: rank {} is not in 0..{}", operation, ranks[i], size - 1));
    }
    if (i > 0 && ranks[i] == ranks[i - 1]) {
      throw std::invalid_argument(fmt::format("{}: rank {} is given twice", operation, ranks[i]));
    }
  }
  return ranks;
}

}  // namespace

WorkPtr all_reduce(const at::Tensor& tensor, ProcessGroup& group, ReduceOp op, bool async_op) {
  TensorCall call("all_reduce", async_op);
  const Buffer in_out = call.in_out(tensor, "tensor");
  return call.finish(group.all_reduce(in_out, reduction_of(tensor, op), call.options()));
}

WorkPtr all_reduce_coalesced(const std::vector<at::Tensor>& tensors, ProcessGroup& group,
                             ReduceOp op, bool async_op) {
  TensorCall call("all_reduce_coalesced", async_op);
  call.require(!tensors.empty(), "tensors is empty");
  std::vector<Buffer> buffers;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    buffers.push_back(call.in_out(tensors[i], fmt::format("tensors[{}]", i).c_str()));
  }
  return call.finish(
      group.all_reduce_coalesced(buffers, reduction_of(tensors.front(), op), call.options()));
}

WorkPtr broadcast(const at::Tensor& tensor, Rank src, ProcessGroup& group, bool async_op) {
  TensorCall call("broadcast", async_op);
  const Buffer buffer =
      group.rank() == src ? call.input(tensor, "tensor") : call.output(tensor, "tensor");
  return call.finish(group.broadcast(buffer, src, call.options()));
}

WorkPtr reduce(const at::Tensor& tensor, Rank dst, ProcessGroup& group, ReduceOp op,
               bool async_op) {
  TensorCall call("reduce", async_op);
  const Buffer buffer =
      group.rank() == dst ? call.in_out(tensor, "tensor") : call.input(tensor, "tensor");
  return call.finish(group.reduce(buffer, dst, reduction_of(tensor, op), call.options()));
}

WorkPtr all_gather(const std::vector<at::Tensor>& tensor_list, const at::Tensor& tensor,
                   ProcessGroup& group, bool async_op) {
  TensorCall call("all_gather", async_op);
  call.require_length(tensor_list, "tensor_list", group);
  const Buffer in = call.input(tensor, "tensor");
  const Buffer out = call.outputs(tensor_list, "tensor_list");
  const at::Tensor& own = tensor_list[static_cast<std::size_t>(group.rank())];
  call.require(own.sizes() == tensor.sizes(),
               fmt::format("tensor_list[{}], this rank's, is {}, tensor is {}; they must have the "
                           "same sizes",
                           group.rank(), describe(own), describe(tensor)));
  const std::vector<std::size_t> counts = counts_of(tensor_list);
  return call.finish(are_equal(counts) ? group.all_gather(in, out, call.options())
                                       : group.all_gatherv(in, out, counts, call.options()));
}

WorkPtr all_gather_into_tensor(const at::Tensor& output_tensor, const at::Tensor& input_tensor,
                               ProcessGroup& group, bool async_op) {
  TensorCall call("all_gather_into_tensor", async_op);
  const Buffer in = call.input(input_tensor, "input_tensor");
  const Buffer out = call.output(output_tensor, "output_tensor");
  return call.finish(group.all_gather(in, out, call.options()));
}

WorkPtr reduce_scatter(const at::Tensor& output, const std::vector<at::Tensor>& input_list,
                       ProcessGroup& group, ReduceOp op, bool async_op) {
  TensorCall call("reduce_scatter", async_op);
  call.require_length(input_list, "input_list", group);
  const Buffer out = call.output(output, "output");
  const Buffer in = call.inputs(input_list, "input_list");
  call.require_sizes(input_list, "input_list", output, "output");
  return call.finish(group.reduce_scatter(in, out, reduction_of(output, op), call.options()));
}

WorkPtr reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input,
                              ProcessGroup& group, ReduceOp op, bool async_op) {
  TensorCall call("reduce_scatter_tensor", async_op);
  const Buffer out = call.output(output, "output");
  const Buffer in = call.input(input, "input");
  return call.finish(group.reduce_scatter(in, out, reduction_of(output, op), call.options()));
}

WorkPtr gather(const at::Tensor& tensor, ProcessGroup& group,
               const std::vector<at::Tensor>& gather_list, Rank dst, bool async_op) {
  TensorCall call("gather", async_op);
  const Buffer in = call.input(tensor, "tensor");
  Buffer out = call.nothing();
  if (group.rank() == dst) {
    call.require_length(gather_list, "gather_list, which dst must give,", group);
    out = call.outputs(gather_list, "gather_list");
    call.require_sizes(gather_list, "gather_list", tensor, "tensor");
  } else {
    call.require(
        gather_list.empty(),
        fmt::format("gather_list is given on rank {}, which is not dst ({})", group.rank(), dst));
  }
  return call.finish(group.gather(in, out, dst, call.options()));
}

WorkPtr scatter(const at::Tensor& tensor, ProcessGroup& group,
                const std::vector<at::Tensor>& scatter_list, Rank src, bool async_op) {
  TensorCall call("scatter", async_op);
  const Buffer out = call.output(tensor, "tensor");
  Buffer in = call.nothing();
  if (group.rank() == src) {
    call.require_length(scatter_list, "scatter_list, which src must give,", group);
    in = call.inputs(scatter_list, "scatter_list");
    call.require_sizes(scatter_list, "scatter_list", tensor, "tensor");
  } else {
    call.require(
        scatter_list.empty(),
        fmt::format("scatter_list is given on rank {}, which is not src ({})", group.rank(), src));
  }
  return call.finish(group.scatter(in, out, src, call.options()));
}

WorkPtr all_to_all(const std::vector<at::Tensor>& output_tensor_list,
                   const std::vector<at::Tensor>& input_tensor_list, ProcessGroup& group,
                   bool async_op) {
  TensorCall call("all_to_all", async_op);
  call.require_length(output_tensor_list, "output_tensor_list", group);
  call.require_length(input_tensor_list, "input_tensor_list", group);
  const Buffer in = call.inputs(input_tensor_list, "input_tensor_list");
  const Buffer out = call.outputs(output_tensor_list, "output_tensor_list");
  // Whether all blocks of all ranks are equal cannot be told from those of one rank.
  return call.finish(group.all_to_allv(in, counts_of(input_tensor_list), out,
                                       counts_of(output_tensor_list), call.options()));
}

WorkPtr all_to_all_single(const at::Tensor& output, const at::Tensor& input, ProcessGroup& group,
                          const std::vector<std::int64_t>& output_split_sizes,
                          const std::vector<std::int64_t>& input_split_sizes, bool async_op) {
  TensorCall call("all_to_all_single", async_op);
  const Buffer in = call.input(input, "input");
  const Buffer out = call.output(output, "output");
  const auto in_counts = split_counts(call, input, "input", input_split_sizes, group.size());
  const auto out_counts = split_counts(call, output, "output", output_split_sizes, group.size());
  if (output_split_sizes.empty() && input_split_sizes.empty()) {
    return call.finish(group.all_to_all(in, out, call.options()));
  }
  return call.finish(group.all_to_allv(in, in_counts, out, out_counts, call.options()));
}

void send(const at::Tensor& tensor, Rank dst, ProcessGroup& group, std::uint32_t tag) {
  TensorCall call("send", false);
  const Buffer buffer = call.input(tensor, "tensor");
  call.finish(group.send(buffer, dst, tag, call.options()));
}

Rank recv(const at::Tensor& tensor, Rank src, ProcessGroup& group, std::uint32_t tag) {
  TensorCall call("recv", false);
  const Buffer buffer = call.output(tensor, "tensor");
  call.finish(group.recv(buffer, src, tag, call.options()));
  return src;
}

WorkPtr isend(const at::Tensor& tensor, Rank dst, ProcessGroup& group, std::uint32_t tag) {
  TensorCall call("isend", true);
  const Buffer buffer = call.input(tensor, "tensor");
  return call.finish(group.send(buffer, dst, tag, call.options()));
}

WorkPtr irecv(const at::Tensor& tensor, Rank src, ProcessGroup& group, std::uint32_t tag) {
  TensorCall call("irecv", true);
  const Buffer buffer = call.output(tensor, "tensor");
  return call.finish(group.recv(buffer, src, tag, call.options()));
}

WorkPtr barrier(ProcessGroup& group, bool async_op) {
  TensorCall call("barrier", async_op);
  return call.finish(group.barrier(call.options()));
}

void monitored_barrier(ProcessGroup& group, std::chrono::milliseconds timeout,
                       bool wait_all_ranks) {
  group.monitored_barrier(timeout, wait_all_ranks);
}

std::shared_ptr<ProcessGroup> new_group(ProcessGroup& group, std::vector<Rank> ranks) {
  if (ranks.empty()) {
    for (Rank rank = 0; rank < group.size(); ++rank) ranks.push_back(rank);
  }
  return group.new_group(ascending("new_group", std::move(ranks), group.size()));
}

std::shared_ptr<ProcessGroup> split_group(ProcessGroup& parent,
                                          const std::vector<std::vector<Rank>>& split_ranks) {
  std::vector<Rank> all;
  int color = -1;
  for (std::size_t i = 0; i < split_ranks.size(); ++i) {
    const std::vector<Rank>& ranks = split_ranks[i];
    if (ranks.empty()) {
      throw std::invalid_argument(fmt::format("split_group: split_ranks[{}] is empty", i));
    }
    all.insert(all.end(), ranks.begin(), ranks.end());
    if (std::find(ranks.begin(), ranks.end(), parent.rank()) != ranks.end()) {
      color = static_cast<int>(i);
    }
  }
  ascending("split_group", std::move(all), parent.size());
  return parent.split(color);
}

}  // namespace ddp
