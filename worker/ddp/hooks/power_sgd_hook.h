#pragma once

#include "worker/ddp/averaging/future.h"
#include "worker/ddp/averaging/grad_bucket.h"
#include "worker/ddp/hooks/power_sgd_state.h"

namespace ddp {

// PowerSGD (arXiv 1905.13727), step by step as PyTorch's hook of this name:
//
//   auto state = std::make_shared<ddp::PowerSGDState>(group, ddp::PowerSGDOptions{...});
//   model.register_comm_hook(state, ddp::powerSGD_hook);
//
// Before start_powerSGD_iter, plain averaging. Then each gradient is a matrix of its outermost
// dimension by all others, and for those worth it (min_compression_rate): add the residual of the
// step before; P = M Q, summed over the ranks, orthogonalised; Q = M^T P, averaged; the gradient is
// P Q^T, and the difference from M is the new residual. All others are averaged in one piece.
//
// Differences from PyTorch, which change results by rounding only: the average of uncompressed
// gradients is issued first, together with P's; each stage is a stage of the future, so the stages
// of several buckets overlap; there are no residuals of uncompressed gradients, because they add up
// to zero over the ranks; half-precision buckets are computed in float32 and sent in their own
// type. Each rank computes P Q^T itself: ranks agree to the bit if their processors do.
//
// A step that fails halfway leaves the residuals undefined: continue from a saved state.
Future powerSGD_hook(PowerSGDState& state, GradBucket& bucket);

}  // namespace ddp
