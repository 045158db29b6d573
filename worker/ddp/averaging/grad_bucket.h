#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/base/shared_text.h"

namespace ddp {

// Some parameters' gradients of one backward, as a communication hook sees them. Made and owned by
// the reducer, which keeps it from one backward to the next; used on the thread that runs the hook.
class GradBucket {
 public:
  // What the bucket is of. `parameters` and `names` are in the order in which their gradients lie
  // in the buffer.
  struct Contents {
    std::size_t index = 0;
    bool is_last = false;
    at::Tensor buffer;
    std::vector<at::Tensor> gradients;
    std::vector<at::Tensor> parameters;
    std::vector<std::string> names;
  };
  GradBucket() = default;
  explicit GradBucket(Contents contents) : contents_(std::move(contents)) {}

  // Buckets are handed to the hook in the order of their indices, the same on all ranks.
  std::size_t index() const { return contents_.index; }
  // Whether it is the last one of this backward.
  bool is_last() const { return contents_.is_last; }

  // The gradients of this rank, not averaged, one behind the other: one-dimensional, contiguous, in
  // memory of the group (ProcessGroup::allocate) unless that is full.
  const at::Tensor& buffer() const { return contents_.buffer; }
  // Puts another tensor of the same number of elements in place of the buffer, for a hook around
  // which this one is wrapped; its type may differ. gradients() are parts of it from then on. Lasts
  // for this backward.
  void set_buffer(const at::Tensor& buffer);

  // Parts of buffer(), with the parameters' sizes.
  const std::vector<at::Tensor>& gradients() const { return contents_.gradients; }
  const std::vector<at::Tensor>& parameters() const { return contents_.parameters; }
  // As Module::named_parameters gives them.
  const std::vector<std::string>& names() const { return contents_.names; }

  // Memory that a hook keeps with the bucket from one backward to the next, one tensor a type:
  // undefined until a hook assigns one.
  at::Tensor& scratch(at::ScalarType type) { return scratch_[type]; }
  // Likewise the name of a hook's operations on the bucket in a type: empty until it gives one.
  SharedText& label(at::ScalarType type) { return labels_[type]; }

 private:
  Contents contents_;
  std::map<at::ScalarType, at::Tensor> scratch_;
  std::map<at::ScalarType, SharedText> labels_;
};

}  // namespace ddp
