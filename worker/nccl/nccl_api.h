#pragma once

#include <climits>
#include <cstddef>

#include "worker/nccl/cuda_api.h"

// The part of NCCL's C interface that this folder uses, declared here so that no NCCL header is
// needed. Names, argument lists and numbers are those of NVIDIA's documentation (stable within
// NCCL 2). Enumerations of C are passed as int.
namespace ddp::nccl::api {

using Comm = struct OpaqueComm*;

// Passed by value, as the C interface does.
struct UniqueId {
  char bytes[128];
};

using Result = int;
inline constexpr Result kSuccess = 0;
inline constexpr Result kSystemError = 2;
inline constexpr Result kInvalidArgument = 4;
inline constexpr Result kInvalidUsage = 5;
inline constexpr Result kRemoteError = 6;
inline constexpr Result kInProgress = 7;  // The communicator is still working on a call.

enum DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

// Also a handle of ncclRedOpCreatePreMulSum, so an int and not an enumeration.
using RedOp = int;
inline constexpr RedOp kSum = 0;
inline constexpr RedOp kProd = 1;
inline constexpr RedOp kMax = 2;
inline constexpr RedOp kMin = 3;
inline constexpr RedOp kAvg = 4;

inline constexpr int kScalarHostImmediate = 1;  // The factor is read during the call.

// ncclConfig_t of NCCL 2.14, which states its size and version; later versions use their defaults
// for the fields that it lacks.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 1;
  int unset = INT_MIN;  // Padding of 2.14, the first later field of newer ones: "undefined".
};

// Filled by NcclLibrary::load(); every member is set.
struct Api {
  Result (*get_version)(int* version);
  Result (*get_unique_id)(UniqueId* id);
  Result (*comm_init_rank_config)(Comm* comm, int size, UniqueId id, int rank, Config* config);
  Result (*comm_get_async_error)(Comm comm, Result* state);
  Result (*comm_abort)(Comm comm);
  Result (*comm_finalize)(Comm comm);
  Result (*comm_destroy)(Comm comm);
  Result (*all_reduce)(const void* in, void* out, std::size_t count, int type, RedOp op, Comm comm,
                       cuda::Stream stream);
  Result (*broadcast)(const void* in, void* out, std::size_t count, int type, int root, Comm comm,
                      cuda::Stream stream);
  Result (*reduce)(const void* in, void* out, std::size_t count, int type, RedOp op, int root,
                   Comm comm, cuda::Stream stream);
  Result (*all_gather)(const void* in, void* out, std::size_t in_count, int type, Comm comm,
                       cuda::Stream stream);
  Result (*reduce_scatter)(const void* in, void* out, std::size_t out_count, int type, RedOp op,
                           Comm comm, cuda::Stream stream);
  Result (*send)(const void* in, std::size_t count, int type, int peer, Comm comm,
                 cuda::Stream stream);
  Result (*recv)(void* out, std::size_t count, int type, int peer, Comm comm, cuda::Stream stream);
  Result (*group_start)();
  Result (*group_end)();
  Result (*red_op_create_premul_sum)(RedOp* op, void* factor, int type, int residence, Comm comm);
  Result (*red_op_destroy)(RedOp op, Comm comm);
  const char* (*get_error_string)(Result result);
  const char* (*get_last_error)(Comm comm);
};

}  // namespace ddp::nccl::api
