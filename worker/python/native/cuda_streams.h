#pragma once

#include <c10/core/Stream.h>

#include "worker/nccl/transfer.h"

namespace ddp::python {

// PyTorch's streams as CUDA's handles (cudaStream_t), and back. Python's torch.cuda knows both, so
// the module needs neither CUDA's headers nor a PyTorch that was built with CUDA. Any thread, with
// or without the GIL.

// Takes the GIL the first time that a stream is seen.
cuda::Stream handle_of(const c10::Stream& stream);

// A stream that PyTorch did not make. It must outlive every use.
c10::Stream external_stream(cuda::Stream handle, c10::Device device);

// The stream into which the calling thread puts work for the device.
c10::Stream current_stream(c10::Device device);

}  // namespace ddp::python
