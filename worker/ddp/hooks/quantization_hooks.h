#pragma once

#include <cstdint>

#include "worker/ddp/averaging/future.h"
#include "worker/ddp/averaging/grad_bucket.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// Every rank sends its gradients as bytes, with a scale and a zero point for each bucket (per
// tensor) or each run of bucket_size elements (per channel), as PyTorch's experimental hooks of
// these names, which need CUDA. Each rank gets the bytes of all others, decodes and averages them.
// The traffic grows with the size of the group, so beyond a few ranks it is more than that of plain
// averaging.
//
// The range is that of the values and zero; scale = (max - min) / 255, zero point = round(-min /
// scale), byte = round(value / scale) + zero point within 0 .. 255, all in float32. One operation
// carries scales and bytes, where PyTorch takes two. A range that is not finite gives NaN for the
// bucket or channel on all ranks.
Future quantization_pertensor_hook(ProcessGroup& process_group, GradBucket& bucket);
// Throws std::invalid_argument for a bucket_size below 1. With another one than the default:
//
//   model.register_comm_hook(group, [](ddp::ProcessGroup& group, ddp::GradBucket& bucket) {
//     return ddp::quantization_perchannel_hook(group, bucket, 128);
//   });
Future quantization_perchannel_hook(ProcessGroup& process_group, GradBucket& bucket,
                                    std::int64_t bucket_size = 512);

}  // namespace ddp
