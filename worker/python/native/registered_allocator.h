#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "worker/transport/arena.h"

// Registered memory for tensors: memory that the node's other ranks can reach, so that tensors in
// it are reduced without a copy.
//
// install_registered_allocator() wraps PyTorch's allocator for the CPU. The wrapper learns which
// sizes this process communicates, and gives registered memory to later allocations of just these
// sizes: to DDP's buckets, which DDP allocates again after the first step, and to FSDP's buffers,
// which are allocated in each step. All else is allocated as before, and so is what finds no room.
//
// A forked child gets copies. Without them, a write in the child would be seen by its parent.
// fork() takes as long as copying all registered tensors; vfork() and posix_spawn() do not.
//
// Any thread may call these functions.
namespace ddp::python {

// Once in a process.
void install_registered_allocator();

// An operation uses the tensor, in a group whose ranks share `arena`. Its size is learned if the
// tensor is all of its memory and has at least 64 KiB.
void learn_size(const std::shared_ptr<transport::Arena>& arena, const at::Tensor& tensor);

// One-dimensional, with undefined content, in registered memory if there is room.
at::Tensor allocate_registered(const std::shared_ptr<transport::Arena>& arena, std::int64_t size,
                               const at::TensorOptions& options);

// Whether the tensor's memory is registered.
bool is_registered(const at::Tensor& tensor);

}  // namespace ddp::python
