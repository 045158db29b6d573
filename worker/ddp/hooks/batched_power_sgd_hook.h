#pragma once

#include "worker/ddp/averaging/future.h"
#include "worker/ddp/averaging/grad_bucket.h"
#include "worker/ddp/hooks/power_sgd_state.h"

namespace ddp {

// PowerSGD on a whole bucket, as PyTorch's hook of this name would if it worked (1.13 and later
// stop at an assertion): the buffer, padded with zeros, is one square matrix with one P and one Q.
// Faster than powerSGD_hook and much less accurate, unless the rank is 1. min_compression_rate and
// batch_tensors_with_same_shape mean nothing here.
//
// Residuals are kept by parameter. When buckets are rebuilt they stay, but the residual of the
// padding is dropped and Q is drawn anew, because Q belongs to a bucket of certain parameters.
Future batched_powerSGD_hook(PowerSGDState& state, GradBucket& bucket);

}  // namespace ddp
