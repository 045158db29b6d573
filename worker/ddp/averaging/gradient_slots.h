#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/ddp/tensors/module_state.h"

namespace ddp {

// Between the parameters' .grad and their places in buckets. A slot is a tensor of a parameter's
// sizes over a part of a bucket's buffer (slot_of). With `as_views`, .grad becomes the slot itself
// where the types are equal; else values are copied, and converted if the slot is of another type
// (`convert`). Used by one thread at a time.
class GradientSlots {
 public:
  struct Options {
    bool as_views = false;
    bool convert = false;
    std::optional<at::ScalarType> type = {};  // Of .grad after backward, if not the parameter's.
  };
  GradientSlots(std::vector<NamedTensor> parameters, Options options);

  std::size_t size() const { return parameters_.size(); }
  const NamedTensor& parameter(std::size_t index) const { return parameters_[index].named; }
  const std::vector<NamedTensor>& named() const { return named_; }
  const at::Tensor& gradient(std::size_t index) const {
    return parameters_[index].named.tensor.grad();
  }

  // Gives a parameter its slot. A .grad that was moved out by vacate() becomes the new slot, with
  // its values; it stays the same tensor.
  void place(std::size_t index, at::Tensor slot);
  // Moves every .grad that is a slot to memory of its own and forgets all slots.
  void vacate();

  // Puts .grad into the slot, zero where it is undefined. Throws std::invalid_argument for a
  // gradient that cannot be reduced, naming the parameter.
  void stage(std::size_t index);
  // The same if .grad may have to stay what it is: publish(index, false) brings it back.
  void stage_and_keep(std::size_t index);
  // Zero into the slot, whatever .grad is.
  void stage_zero(std::size_t index);

  // Puts the slot into .grad; with used_somewhere == false leaves .grad as it was before staging.
  void publish(std::size_t index, bool used_somewhere);
  // Puts a gradient into .grad that has no slot.
  void publish_value(std::size_t index, const at::Tensor& value);

  // Gives .grad the type that it has after backward, for the end of a backward that computed in
  // another one.
  void match_types();

  // As Reducer::zero_grad.
  void zero_grad(bool set_to_none);

 private:
  struct Parameter {
    NamedTensor named;
    at::Tensor slot;
    at::Tensor view;          // What .grad is if it is the slot itself; see gradient_view.
    at::Tensor before;        // What .grad was, if staging overwrote it and it may be wanted back.
    bool is_vacated = false;  // Was a view, and will be one of the next slot.
  };
  void check(const Parameter& parameter, const at::Tensor& gradient) const;
  bool may_view(const Parameter& parameter) const;
  at::ScalarType type_of(const Parameter& parameter) const;

  Options options_;
  std::vector<Parameter> parameters_;
  std::vector<NamedTensor> named_;
};

}  // namespace ddp
