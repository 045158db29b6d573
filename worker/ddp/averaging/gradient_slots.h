#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/ddp/tensors/module_state.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// Moves gradients between the parameters' .grad and their places in buckets. A slot is a tensor of
// a parameter's sizes over a part of a bucket's buffer (slot_of). Also knows which parameters are
// used. Used by one thread at a time.
class GradientSlots {
 public:
  struct Options {
    bool as_views = false;  // .grad becomes the slot itself if the types are equal.
    bool convert = false;   // Takes gradients of another type than their slot's.
    bool densify = false;   // Takes sparse gradients; .grad becomes dense.
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

  // Whether a parameter is used: whether it has a gradient on this rank, and after exchange_used()
  // on any rank. All parameters are used until set_used() says otherwise. exchange_used() is
  // collective; nothing here may be called while it is in flight, except to stage gradients.
  void set_used(std::size_t index, bool used) { used_[index] = used ? 1 : 0; }
  bool is_used(std::size_t index) const { return used_[index] != 0; }
  WorkPtr exchange_used(ProcessGroup& group);

  // Copies .grad into the slot, or zeros if it is undefined. Throws std::invalid_argument naming
  // the parameter if the gradient cannot be reduced.
  void stage(std::size_t index);
  // The same, but keeps the old .grad so that publish() can restore it.
  void stage_and_keep(std::size_t index);
  // The same into another slot for the parameter. .grad is undefined afterwards.
  void stage_in(const at::Tensor& slot, std::size_t index);
  // Zeroes the slot and ignores .grad.
  void stage_zero(std::size_t index);

  // Copies the slot into .grad. If the parameter is not used, .grad stays as it was before staging.
  void publish(std::size_t index);
  // The same for a gradient that has no slot.
  void publish_value(std::size_t index, const at::Tensor& value);

  // Converts .grad to its parameter's type, at the end of a backward that computed in another one.
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
  bool copy_to(const at::Tensor& slot, const Parameter& parameter) const;
  bool fits(const at::Tensor& gradient, const Parameter& parameter, const at::Tensor& slot) const;
  [[noreturn]] void refuse(const at::Tensor& gradient, const Parameter& parameter) const;
  bool may_view(const Parameter& parameter) const;

  Options options_;
  std::vector<Parameter> parameters_;
  std::vector<NamedTensor> named_;
  std::vector<std::uint8_t> used_;  // By parameter.
};

// Drops a gradient or sets it to zero in place, if there is one.
void zero_gradient(at::Tensor& gradient, bool set_to_none);

}  // namespace ddp
