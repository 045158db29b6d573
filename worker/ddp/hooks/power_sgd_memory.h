#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/ddp/hooks/bucket_cache.h"
#include "worker/ddp/hooks/power_sgd_state.h"

namespace ddp {

// A factor P or Q of all matrices of a bucket: computed in one type, reduced in the bucket's.
class PowerSGDFactor {
 public:
  PowerSGDFactor() = default;
  PowerSGDFactor(ProcessGroup& group, std::int64_t numel, at::ScalarType type);

  const at::Tensor& values() const { return values_; }  // Flat, float32 or float64.
  WorkPtr all_reduce(ProcessGroup& group, ReduceOp op, const std::string& tag) const;
  void receive() const;  // Once the reduction is done.

 private:
  at::Tensor values_;
  at::Tensor wire_;  // The same memory where both types are the same.
};

// Matrices of one shape that are multiplied in one batch; usually one matrix.
struct PowerSGDBatch {
  std::vector<std::size_t> members;  // Positions of the parameters in the bucket.
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t rank = 0;
  // [batch, rows, columns]: with error feedback, each parameter's residual; during a step, what is
  // compressed. Undefined where the bucket's own memory is enough.
  at::Tensor matrices;
  at::Tensor p;  // [batch, rows, rank]
  at::Tensor q;  // [batch, columns, rank]
};

// What powerSGD_hook has for a bucket.
struct PowerSGDBucket {
  std::string text;
  std::vector<PowerSGDBatch> batches;
  std::vector<std::size_t> uncompressed;  // Positions of the parameters in the bucket.
  at::Tensor uncompressed_flat;
  std::vector<at::Tensor> uncompressed_slots;  // Parts of it.
  PowerSGDFactor p;
  PowerSGDFactor q;
  std::int64_t numel_before = 0;
  std::int64_t numel_after = 0;
};

// What batched_powerSGD_hook has for a bucket.
struct BatchedPowerSGDBucket {
  std::string text;
  std::string key;
  std::int64_t side = 0;
  std::int64_t rank = 0;
  at::Tensor square;  // [side * side], as PowerSGDBatch::matrices; behind the gradients is padding.
  at::Tensor tail;    // [rows that do not lie in the bucket as a whole, side]
  PowerSGDFactor p;
  PowerSGDFactor q;
};

struct PowerSGDState::Memory {
  // The type to compute in for buckets of this type.
  static at::ScalarType compute_type(at::ScalarType type);

  // Standard normal values for [columns, rank], from the options' seed, the step and the name.
  void draw(const PowerSGDOptions& options, const std::string& name, const at::Tensor& q) const;
  // Q for this step: as it is or drawn anew, orthogonalised. A Q that was never set, has a column
  // of zeros (the gradient was zero) or is not finite is always drawn.
  void prepare(const PowerSGDOptions& options, const std::string& name, const at::Tensor& q) const;

  // Counts and, from time to time, reports.
  void count(const PowerSGDState& state, const GradBucket& bucket, std::int64_t before,
             std::int64_t after);
  // Counts a step when its last bucket is in flight.
  void advance(const GradBucket& bucket) {
    if (bucket.is_last()) ++iter;
  }

  std::int64_t iter = 0;
  std::int64_t numel_before = 0;
  std::int64_t numel_after = 0;
  std::int64_t next_report = 0;
  NamedTensors errors;    // By parameter.
  NamedTensors paddings;  // By bucket.
  NamedTensors qs;        // By parameter or bucket.
  BucketCache<PowerSGDBucket> buckets;
  BucketCache<BatchedPowerSGDBucket> batched_buckets;
};

}  // namespace ddp
