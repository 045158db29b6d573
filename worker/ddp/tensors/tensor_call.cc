#include "worker/ddp/tensors/tensor_call.h"

#include <cstddef>
#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "worker/ddp/tensors/flat_memory.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
void TensorCall::require(bool condition, const std::string& problem) const {
  if (!condition) throw std::invalid_argument(fmt::format("{}: {}", operation_, problem));
}

void TensorCall::require_length(const std::vector<at::Tensor>& list, const char* argument,
                                const ProcessGroup& group) const {
  require(list.size() == static_cast<std::size_t>(group.size()),
          fmt::format("{} has {} tensors for {} ranks", argument, list.size(), group.size()));
}

void TensorCall::require_sizes(const std::vector<at::Tensor>& list, const char* argument,
                               const at::Tensor& like, const char* like_argument) const {
  for (std::size_t i = 0; i < list.size(); ++i) {
    require(list[i].sizes() == like.sizes(),
            fmt::format("{}[{}] is {}, {} is {}; they must have the same sizes", argument, i,
                        describe(list[i]), like_argument, describe(like)));
  }
}

void TensorCall::check(const at::Tensor& tensor, const std::string& argument) {
  const DType type = element_type(tensor, fmt::format("{}: {}", operation_, argument));
  if (!std::exchange(typed_, true)) {
    scalar_type_ = tensor.scalar_type();
    type_ = type;
  }
  require(tensor.scalar_type() == scalar_type_,
          fmt::format("{} is {}, a tensor before it is {}; all must have one element type",
                      argument, type_name(tensor.scalar_type()), type_name(scalar_type_)));
}

void TensorCall::check_output(const at::Tensor& tensor, const std::string& argument) {
  check(tensor, argument);
  require(at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
          fmt::format("{} ({}) has elements that share memory, so it cannot receive results; "
                      "clone() it",
                      argument, describe(tensor)));
}

void TensorCall::check_list(const std::vector<at::Tensor>& list, const char* argument,
                            bool output) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string name = fmt::format("{}[{}]", argument, i);
    if (output) {
      check_output(list[i], name);
    } else {
      check(list[i], name);
    }
  }
}

Buffer TensorCall::use(const at::Tensor& tensor) {
  used_.push_back(tensor);
  return buffer_of(tensor);
}

Buffer TensorCall::input(const at::Tensor& tensor, const char* argument) {
  check(tensor, argument);
  return use(is_plain(tensor) ? tensor : plain_copy(tensor));
}

Buffer TensorCall::output(const at::Tensor& tensor, const char* argument) {
  check_output(tensor, argument);
  if (is_plain(tensor)) {
    mark_changed(tensor);
    return use(tensor);
  }
  const at::Tensor result = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
  landings_.push_back({tensor, result});
  return use(result);
}

Buffer TensorCall::in_out(const at::Tensor& tensor, const char* argument) {
  check_output(tensor, argument);
  if (is_plain(tensor)) {
    mark_changed(tensor);
    return use(tensor);
  }
  const at::Tensor copy = plain_copy(tensor);
  landings_.push_back({tensor, copy});
  return use(copy);
}

Buffer TensorCall::inputs(const std::vector<at::Tensor>& list, const char* argument) {
  check_list(list, argument, false);
  if (void* const begin = adjacent_begin(list)) {
    used_.insert(used_.end(), list.begin(), list.end());
    return {begin, static_cast<std::size_t>(elements_of(list)), type_};
  }
  const at::NoGradGuard no_grad;
  const at::Tensor flat = at::empty({elements_of(list)}, at::TensorOptions(scalar_type_));
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : list) {
    flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()).copy_(tensor.detach());
    begin += tensor.numel();
  }
  return use(flat);
}

Buffer TensorCall::outputs(const std::vector<at::Tensor>& list, const char* argument) {
  check_list(list, argument, true);
  if (void* const begin = adjacent_begin(list)) {
    for (const at::Tensor& tensor : list) mark_changed(tensor);
    used_.insert(used_.end(), list.begin(), list.end());
    return {begin, static_cast<std::size_t>(elements_of(list)), type_};
  }
  const at::Tensor flat = at::empty({elements_of(list)}, at::TensorOptions(scalar_type_));
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : list) {
    landings_.push_back({tensor, flat.narrow(0, begin, tensor.numel()).view(tensor.sizes())});
    begin += tensor.numel();
  }
  return use(flat);
}

OpOptions TensorCall::options() const {
  OpOptions options;
  options.synchronous = !async_op_;
  return options;
}

WorkPtr TensorCall::finish(WorkPtr work) {
  if (async_op_) {
    return std::make_shared<TensorWork>(std::move(work), std::move(used_), std::move(landings_));
  }
  for (const Landing& landing : landings_) copy_values(landing.to, landing.from);
  return work;
}

}  // namespace ddp
