#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/buckets/pieces.h"
#include "worker/buckets/plan.h"
#include "worker/ddp/averaging/bucket_names.h"
#include "worker/ddp/averaging/grad_bucket.h"
#include "worker/ddp/tensors/module_state.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// Whose gradients are in the buckets.
BucketNames bucket_names(const std::vector<buckets::BucketLayout>& layouts,
                         const std::vector<NamedTensor>& parameters);

// The name of a bucket, in errors and for the group: "bucket 1 of 4 (conv2.weight .. fc1.bias)",
// from the parameter defined first to the one defined last.
std::string bucket_tag(std::size_t index, const std::vector<buckets::BucketLayout>& layouts,
                       const std::vector<NamedTensor>& parameters);

// The same for piece `number` of the `count` pieces of its bucket, for example "bucket 1 of 4,
// piece 0 of 3 (fc1.weight .. fc1.bias)". The bucket's own name if it has one piece only.
std::string piece_tag(const buckets::BucketPiece& piece, std::size_t number, std::size_t count,
                      const std::vector<buckets::BucketLayout>& layouts,
                      const std::vector<NamedTensor>& parameters);

// Makes the buffers of all buckets, filled with zeros, on the parameters' device. On the CPU they
// are in the group's registered memory as far as there is room. A buffer holds gradients in the
// order of the layout's slots, each with the memory layout of its parameter (slot_of). Local.
// `parameters` are the ones that the layouts were planned from: dense, floating-point, and on one
// device within a layout. The buffers have their type, or `type` if the layouts were planned for
// that.
std::vector<GradBucket> make_grad_buckets(const std::vector<buckets::BucketLayout>& layouts,
                                          const std::vector<NamedTensor>& parameters,
                                          ProcessGroup& group,
                                          std::optional<at::ScalarType> type = {});

}  // namespace ddp
