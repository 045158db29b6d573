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
// dimension by all others, and for those worth it (min_compression_rate): add what is owed from the
// step before; P = M Q, summed over the ranks, orthogonalised; Q = M^T P, averaged; the gradient is
// P Q^T, and what that lacks of M is owed. All others are averaged in one piece.
//
// What is different, none of it beyond rounding: the average of what is not compressed is issued
// first, together with P's; each stage is a stage of the future, so those of several buckets
// overlap; nothing is kept as owed for gradients that are not compressed, since over the ranks it
// adds up to zero; half-precision buckets are computed with in float32 and only sent as what they
// are. Ranks compute P Q^T each for itself: they agree to the bit if their processors do.
//
// A step that fails halfway leaves what is owed undefined: go on from a saved state.
Future powerSGD_hook(PowerSGDState& state, GradBucket& bucket);

}  // namespace ddp
