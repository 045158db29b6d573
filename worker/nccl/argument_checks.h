#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

#include "worker/nccl/device_operation.h"
#include "worker/nccl/nccl_group.h"

// Checks of the arguments of NcclGroup's callers. All throw std::invalid_argument, whose text names
// the call and the value. They do not use the group's state; any thread may call them.
namespace ddp::nccl {

// Longer timeouts are cut to this: a deadline must fit into the clock.
constexpr std::chrono::hours kLongestTimeout{24 * 365};

void require(bool condition, const std::string& message);

void require_options(const NcclGroupOptions& options);

// The buffer needs an address, unless it has no elements.
void require_data(DeviceOpKind kind, const Buffer& buffer);
void require_same_type(DeviceOpKind kind, const Buffer& in, const Buffer& out);
// what: "input" or "output".
void require_count(DeviceOpKind kind, const char* what, std::size_t got, std::size_t needed);
// The reduction must be one that NCCL has and that is exact for the type.
void require_reduction(DeviceOpKind kind, DType type, const ReduceOp& op);
void require_rank(DeviceOpKind kind, Rank rank, int size);
// For new_group: some of 0..size-1, in ascending order, each once.
void require_members(std::span<const Rank> ranks, int size);

}  // namespace ddp::nccl
