#pragma once

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

// What differs between LibTorch 1.13 and 2.x, and nothing else: this is the only file of ours that
// may ask which one it is. Differences are asked of the types where that is possible, since they
// came at different times.
//
// Not here, because we use neither: Optimizer::zero_grad, which sets to zero in 1.13 and to
// undefined in 2.x (our own zero_grad does what its argument says), and c10::optional, which 2.x
// replaced by std::optional (no function of ours takes or gives one of LibTorch's).
namespace ddp::compat {

using PostHookFunction = std::function<torch::autograd::variable_list(
    const torch::autograd::variable_list& outputs, const torch::autograd::variable_list& inputs)>;

// A hook for Node::add_post_hook, which runs after the node. 2.x has a second constructor, with
// functions for compiled autograd, which would refuse a hook that has none; C++ programs do not
// compile their backward.
inline std::unique_ptr<torch::autograd::FunctionPostHook> make_post_hook(
    PostHookFunction function) {
  return std::make_unique<torch::autograd::utils::LambdaPostHook>(std::move(function));
}

// Autograd's record of the backward that runs on this thread, null outside of one. Its address
// tells backwards apart while they live. (2.x has get_current_graph_task_id() for it, 1.13 not.)
inline const void* current_backward() {
  return torch::autograd::get_current_graph_task_exec_info();
}

// The key of a parameter in a map such as Optimizer::state() gives: its address, as text in 1.13
// and as a pointer in 2.x.
template <typename Map>
typename Map::key_type state_key(const at::Tensor& parameter) {
  if constexpr (std::is_same_v<typename Map::key_type, std::string>) {
    std::ostringstream text;
    text << static_cast<const void*>(parameter.unsafeGetTensorImpl());
    return text.str();
  } else {
    return parameter.unsafeGetTensorImpl();
  }
}

}  // namespace ddp::compat
