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

// A tensor for each name. What a hook remembers of a parameter from step to step lies in memory of
// the bucket that the parameter is in at the time; here are views of it, by name.
using NamedTensors = std::map<std::string, at::Tensor>;

// Gives `name` the memory `place`, with the values that were known of it, or else zeros. Throws
// std::invalid_argument, beginning with `what`, if what is known has another number of elements.
void move_to(NamedTensors& known, const std::string& name, const at::Tensor& place,
             const std::string& what);

// Copies of all tensors, under `prefix` and their names.
void copy_to(NamedTensors& copies, const std::string& prefix, const NamedTensors& known);

// What a hook has made for each bucket, as long as the bucket is of the same parameters.
template <typename Memory>
class BucketCache {
 public:
  // Null if there is nothing for a bucket like this. If there was something for another bucket of
  // this index, buckets have been rebuilt, and everything is forgotten: the same parameter may not
  // be remembered in two places.
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
