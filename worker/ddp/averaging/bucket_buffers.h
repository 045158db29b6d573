#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/buckets/pieces.h"
#include "worker/buckets/plan.h"
#include "worker/ddp/averaging/grad_bucket.h"
#include "worker/ddp/tensors/module_state.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// Names a bucket in errors and to the group: "bucket 1 of 4 (conv2.weight .. fc1.bias)", from the
// parameter defined first to the one defined last.
std::string bucket_tag(std::size_t index, const std::vector<BucketLayout>& layouts,
                       const std::vector<NamedTensor>& parameters);

// The same for piece `number` of the `count` of its bucket: "bucket 1 of 4, piece 0 of 3
// (fc1.weight
// .. fc1.bias)"; the bucket's name if there is one piece only.
std::string piece_tag(const BucketPiece& piece, std::size_t number, std::size_t count,
                      const std::vector<BucketLayout>& layouts,
                      const std::vector<NamedTensor>& parameters);

// The buffers of all buckets, zero, on the parameters' device: on the CPU in the group's registered
// memory as far as there is room.
// Gradients lie in a buffer in the order of the layout's slots, as their parameters do in memory
// (slot_of). Local. `parameters` is what the layouts were planned from: dense, of a floating-point
// type, those of a layout on one device. The buffers are of that type, or of `type`, for which the
// layouts were planned then.
std::vector<GradBucket> make_grad_buckets(const std::vector<BucketLayout>& layouts,
                                          const std::vector<NamedTensor>& parameters,
                                          ProcessGroup& group,
                                          std::optional<at::ScalarType> type = {});

}  // namespace ddp
