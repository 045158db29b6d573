#pragma once

#include <cstddef>

#include "worker/nccl/transfer.h"

// The part of the CUDA runtime's C interface that this folder uses, declared here so that no CUDA
// header is needed. Names, argument lists and numbers are those of NVIDIA's documentation; they
// have not changed since CUDA 10. Enumerations of C are passed as int, which is how they are
// passed on every platform that CUDA has.
namespace ddp::cuda {

using Event = struct OpaqueEvent*;
using Error = int;

inline constexpr Error kSuccess = 0;
inline constexpr Error kNotReady = 600;  // cudaEventQuery: recorded, but not reached.
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr int kCaptureNone = 0;     // cudaStreamIsCapturing: it runs what it is given.
inline constexpr int kCaptureRelaxed = 2;  // cudaThreadExchangeStreamCaptureMode
inline constexpr int kMemcpyHostToDevice = 1;
inline constexpr int kMemcpyDeviceToHost = 2;

// Filled by NcclLibrary::load(); every member is set.
struct Api {
  Error (*get_device_count)(int* count);
  Error (*get_device)(int* device);  // Of the calling thread, as is what follows.
  Error (*set_device)(int device);
  Error (*device_get_stream_priority_range)(int* least, int* greatest);
  Error (*stream_create_with_priority)(Stream* stream, unsigned flags, int priority);
  Error (*stream_destroy)(Stream stream);
  Error (*stream_wait_event)(Stream stream, Event event, unsigned flags);
  Error (*stream_synchronize)(Stream stream);
  Error (*stream_is_capturing)(Stream stream, int* status);
  Error (*thread_exchange_stream_capture_mode)(int* mode);  // Of the calling thread.
  Error (*event_create_with_flags)(Event* event, unsigned flags);
  Error (*event_record)(Event event, Stream stream);
  Error (*event_query)(Event event);
  Error (*event_destroy)(Event event);
  Error (*malloc)(void** memory, std::size_t bytes);
  Error (*free)(void* memory);
  Error (*memset)(void* memory, int value, std::size_t bytes);
  Error (*memcpy)(void* to, const void* from, std::size_t bytes, int kind);
  const char* (*get_error_string)(Error error);
};

}  // namespace ddp::cuda
