#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/ddp/tensors/module_state.h"

namespace ddp {

// Moves gradients between the parameters' .grad and their places in buckets. A slot is a tensor of
// a parameter's sizes over a part of a bucket's buffer (slot_of). With `as_views`, .grad becomes
// the slot itself if the types are equal. Otherwise values are copied, and converted if the slot
// has another type (`convert`). Used by one thread at a time.
class GradientSlots {
 public:
  struct Options {
    bool as_views = false;
    bool convert = false;
    std::optional<at::ScalarType> type = {};  // .grad's after backward, if not the parameter's.
  };
  GradientSlots(std::vector<NamedTensor> parameters, Options options);

  std::size_t size() const { return parameters_.size(); }
  const NamedTensor& parameter(std::size_t index) const { return parameters_[index].named; }
  const std::vector<NamedTensor>& named() const { return named_; }
  const at::Tensor& gradient(std::size_t index) const {
    return parameters_[index].named.tensor.grad();
  }

  // Gives a parameter its slot. A .grad that vacate() moved out is moved, with its values, into the
  // new slot; it stays the same tensor object.
  void place(std::size_t index, at::Tensor slot);
  // Moves every .grad that is a slot to its own memory, and forgets all slots.
  void vacate();

  // Copies .grad into the slot, or zeros if it is undefined. Throws std::invalid_argument naming
  // the parameter if the gradient cannot be reduced.
  void stage(std::size_t index);
  // The same, but keeps the old .grad so that publish(index, false) can restore it.
  void stage_and_keep(std::size_t index);
  // Zeroes the slot and ignores .grad.
  void stage_zero(std::size_t index);

  // Copies the slot into .grad. If used_somewhere is false, .grad stays as it was before staging.
  void publish(std::size_t index, bool used_somewhere);
  // Sets .grad to a gradient that has no slot.
  void publish_value(std::size_t index, const at::Tensor& value);

  // Converts .grad to its type after backward, at the end of a backward that computed in another
  // one.
  void match_types();

  // As Reducer::zero_grad.
  void zero_grad(bool set_to_none);

 private:
  struct Parameter {
    NamedTensor named;
    at::Tensor slot;
    at::Tensor view;          // What .grad is set to if it is the slot itself; see gradient_view.
    at::Tensor before;        // The old .grad, if staging overwrote it and it may be needed again.
    bool is_vacated = false;  // Was a view, and will be a view of the next slot.
  };
  void check(const Parameter& parameter, const at::Tensor& gradient) const;
  bool may_view(const Parameter& parameter) const;
  at::ScalarType type_of(const Parameter& parameter) const;

  Options options_;
  std::vector<Parameter> parameters_;
  std::vector<NamedTensor> named_;
};

}  // namespace ddp
