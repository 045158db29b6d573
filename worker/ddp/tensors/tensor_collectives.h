#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/runtime/process_group.h"

// torch.distributed's functions on tensors: its names, arguments, defaults and results, over a
// ProcessGroup.
//
//   ddp::all_reduce(loss, *group, ddp::ReduceOp::kAvg);
//   auto work = ddp::broadcast(weights, 0, *group, /*async_op=*/true);
//   ...
//   work->wait();
//
// What is different:
// * There is no default group, so `group` is required; arguments with a default follow it.
// * src, dst and ranks are ranks of that group.
// * Without async_op the call returns when the operation is done, and returns a finished Work, not
//   null.
// * Tensors may have any layout; one that is not contiguous goes through a contiguous copy.
//
// Tensors are dense, in CPU memory, of type uint8, int8, int32, int64, float16, bfloat16, float32,
// float64 or bool, and all of one type in a call. bool is moved as it is and reduced by kSum (as
// "or"), kProd (as "and"), kMin, kMax, kBand, kBor and kBxor. Memory of CUDA devices needs NCCL's
// group (worker/nccl).
//
// Throws std::invalid_argument, which names the operation and the argument, before anything is
// sent; CollectiveError, here or from Work::wait(), for what ProcessGroup documents.
//
// With async_op, do not touch the tensors until the Work is done. The Work keeps them alive, even
// if it is dropped earlier. A result that goes through a copy is in the tensor once wait() has
// returned or done() has returned true. Any thread may call these functions.
namespace ddp {

WorkPtr all_reduce(const at::Tensor& tensor, ProcessGroup& group, ReduceOp op = ReduceOp::kSum,
                   bool async_op = false);
// Several tensors as one operation.
WorkPtr all_reduce_coalesced(const std::vector<at::Tensor>& tensors, ProcessGroup& group,
                             ReduceOp op = ReduceOp::kSum, bool async_op = false);
WorkPtr broadcast(const at::Tensor& tensor, Rank src, ProcessGroup& group, bool async_op = false);
// Only dst gets the result; the others' tensors are unchanged.
WorkPtr reduce(const at::Tensor& tensor, Rank dst, ProcessGroup& group,
               ReduceOp op = ReduceOp::kSum, bool async_op = false);

// tensor_list has a tensor for each rank, of the size of that rank's input; sizes may differ. A
// list whose tensors follow one another in memory is filled in place.
WorkPtr all_gather(const std::vector<at::Tensor>& tensor_list, const at::Tensor& tensor,
                   ProcessGroup& group, bool async_op = false);
// output_tensor is the ranks' inputs, stacked or concatenated: size() times the elements.
WorkPtr all_gather_into_tensor(const at::Tensor& output_tensor, const at::Tensor& input_tensor,
                               ProcessGroup& group, bool async_op = false);
// Rank r gets the reduction of all ranks' input_list[r], which all have output's sizes.
WorkPtr reduce_scatter(const at::Tensor& output, const std::vector<at::Tensor>& input_list,
                       ProcessGroup& group, ReduceOp op = ReduceOp::kSum, bool async_op = false);
WorkPtr reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input,
                              ProcessGroup& group, ReduceOp op = ReduceOp::kSum,
                              bool async_op = false);
// gather_list has a tensor of tensor's sizes for each rank on dst, and is empty elsewhere.
WorkPtr gather(const at::Tensor& tensor, ProcessGroup& group,
               const std::vector<at::Tensor>& gather_list = {}, Rank dst = 0,
               bool async_op = false);
// scatter_list has a tensor of tensor's sizes for each rank on src, and is empty elsewhere.
WorkPtr scatter(const at::Tensor& tensor, ProcessGroup& group,
                const std::vector<at::Tensor>& scatter_list = {}, Rank src = 0,
                bool async_op = false);

// input_tensor_list[d] goes to rank d, where it lands in output_tensor_list[this rank]. Sizes may
// differ.
WorkPtr all_to_all(const std::vector<at::Tensor>& output_tensor_list,
                   const std::vector<at::Tensor>& input_tensor_list, ProcessGroup& group,
                   bool async_op = false);
// Rows (along dimension 0): input_split_sizes[d] of them go to rank d, output_split_sizes[r] come
// from rank r, in rank order. An empty list divides the rows equally. Either all ranks give lists
// or none does.
WorkPtr all_to_all_single(const at::Tensor& output, const at::Tensor& input, ProcessGroup& group,
                          const std::vector<std::int64_t>& output_split_sizes = {},
                          const std::vector<std::int64_t>& input_split_sizes = {},
                          bool async_op = false);

// Returns when the tensor may be used again. To send to this same rank, issue an isend first.
void send(const at::Tensor& tensor, Rank dst, ProcessGroup& group, std::uint32_t tag = 0);
// Returns src. There is no receive from "any rank".
Rank recv(const at::Tensor& tensor, Rank src, ProcessGroup& group, std::uint32_t tag = 0);
WorkPtr isend(const at::Tensor& tensor, Rank dst, ProcessGroup& group, std::uint32_t tag = 0);
WorkPtr irecv(const at::Tensor& tensor, Rank src, ProcessGroup& group, std::uint32_t tag = 0);

WorkPtr barrier(ProcessGroup& group, bool async_op = false);
// Rank 0 fails the group with the first rank that did not come by the timeout (0: the group's), or
// with wait_all_ranks with all of them.
void monitored_barrier(ProcessGroup& group, std::chrono::milliseconds timeout = {},
                       bool wait_all_ranks = false);

// A group of these ranks (given in any order), or of all ranks if the list is empty. Ranks in it
// are numbered in ascending order. Every rank of `group` must call it with the same list; ranks not
// in it get null.
std::shared_ptr<ProcessGroup> new_group(ProcessGroup& group, std::vector<Rank> ranks = {});
// Makes a group for each list; the lists must not share a rank. Returns this rank's group, or null
// if it is in none. Every rank of `parent` must call it with the same lists.
std::shared_ptr<ProcessGroup> split_group(ProcessGroup& parent,
                                          const std::vector<std::vector<Rank>>& split_ranks);

}  // namespace ddp
