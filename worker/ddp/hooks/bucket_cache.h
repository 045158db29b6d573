#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/ddp/averaging/grad_bucket.h"

namespace ddp {

// A tensor for each name. What a hook keeps for a parameter from step to step is in memory of the
// parameter's current bucket; these are views of it, by parameter name.
using NamedTensors = std::map<std::string, at::Tensor>;

// Moves the known values of `name`, or else zeros, into the memory `place`. Throws
// std::invalid_argument, beginning with `what`, if the known values have another number of
// elements.
void move_to(NamedTensors& known, const std::string& name, const at::Tensor& place,
             const std::string& what);

// Copies of all tensors, under `prefix` and their names.
void copy_to(NamedTensors& copies, const std::string& prefix, const NamedTensors& known);

// What a hook has made for each bucket, valid while the bucket has the same parameters.
template <typename Memory>
class BucketCache {
 public:
  // Null if there is nothing for this bucket. If the bucket of this index has other parameters now,
  // the buckets were rebuilt, and all entries are dropped, so that no parameter is kept in two
  // places.
  std::shared_ptr<Memory> find(const GradBucket& bucket) {
    const auto found = entries_.find(bucket.index());
    if (found == entries_.end()) return nullptr;
    const Entry& entry = found->second;
    if (entry.type == bucket.buffer().scalar_type() && entry.numel == bucket.buffer().numel() &&
        entry.names == bucket.names()) {
      return entry.memory;
    }
    entries_.clear();
    return nullptr;
  }

  void put(const GradBucket& bucket, std::shared_ptr<Memory> memory) {
    entries_[bucket.index()] = {bucket.names(), bucket.buffer().scalar_type(),
                                bucket.buffer().numel(), std::move(memory)};
  }

  void clear() { entries_.clear(); }

 private:
  struct Entry {
    std::vector<std::string> names;
    at::ScalarType type = at::ScalarType::Undefined;
    std::int64_t numel = 0;
    std::shared_ptr<Memory> memory;
  };
  std::map<std::size_t, Entry> entries_;
};

}  // namespace ddp
