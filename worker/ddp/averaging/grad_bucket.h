#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/base/shared_text.h"

namespace ddp {

// The gradients of some parameters in one backward, as a communication hook sees them. The reducer
// makes and owns it, and keeps it from one backward to the next. Used on the thread that runs the
// hook.
class GradBucket {
 public:
  // `parameters` and `names` are in the order of their gradients in the buffer.
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
  // Whether it is the last bucket of this backward.
  bool is_last() const { return contents_.is_last; }

  // This rank's gradients, not averaged, one after another: one-dimensional, contiguous, in memory
  // of the group (ProcessGroup::allocate) unless that is full.
  const at::Tensor& buffer() const { return contents_.buffer; }
  // Replaces the buffer by a tensor with the same number of elements, perhaps of another type. For
  // a hook that wraps another hook. gradients() are then parts of the new buffer. The original
  // buffer returns at the end of this backward.
  void set_buffer(const at::Tensor& buffer);

  // Parts of buffer(), with the parameters' sizes.
  const std::vector<at::Tensor>& gradients() const { return contents_.gradients; }
  const std::vector<at::Tensor>& parameters() const { return contents_.parameters; }
  // As Module::named_parameters gives them.
  const std::vector<std::string>& names() const { return contents_.names; }

  // Memory that a hook keeps with the bucket from one backward to the next, one tensor for each
  // type. Undefined until a hook assigns one.
  at::Tensor& scratch(at::ScalarType type) { return scratch_[type]; }
  // Likewise, the name of the hook's operations on the bucket in this type. Empty until a hook sets
  // it.
  SharedText& label(at::ScalarType type) { return labels_[type]; }

 private:
  Contents contents_;
  std::map<at::ScalarType, at::Tensor> scratch_;
  std::map<at::ScalarType, SharedText> labels_;
};

}  // namespace ddp
