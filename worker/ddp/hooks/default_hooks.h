#pragma once

#include "worker/ddp/averaging/future.h"
#include "worker/ddp/averaging/grad_bucket.h"
#include "worker/runtime/process_group.h"

// PyTorch's default communication hooks. Their state is the process group:
//
//   model.register_comm_hook(group, ddp::fp16_compress_hook);
//
// The future's value is the bucket's buffer, changed in place. Buckets of any floating-point type.
namespace ddp {

// The average over the group: bit for bit what happens without a hook.
Future allreduce_hook(ProcessGroup& process_group, GradBucket& bucket);

// Averages half-precision copies, which halves the traffic. This pays on links below 2.5 to 5 GB/s;
// on faster ones the casts cost more. The sum is made in float32 and rounded once; PyTorch divides
// and adds in half precision. In float16, values beyond 65504 become infinite; bfloat16 has
// float32's range and 8 bits of precision.
Future fp16_compress_hook(ProcessGroup& process_group, GradBucket& bucket);
Future bf16_compress_hook(ProcessGroup& process_group, GradBucket& bucket);

// Leaves every rank its own gradients: an upper bound of what any hook could gain. Replicas drift
// apart.
Future noop_hook(ProcessGroup& process_group, GradBucket& bucket);

}  // namespace ddp
