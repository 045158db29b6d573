#pragma once

#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

// What differs between LibTorch 1.13 and 2.x, and nothing else: this is the only file of the
// product that may ask which one it is. It detects differences by types where possible, because
// they came with different versions.
//
// Not here, because we use neither: Optimizer::zero_grad, which sets to zero in 1.13 and to
// undefined in 2.x (our own zero_grad does what its argument says), and c10::optional, which 2.x
// replaced by std::optional (no function of ours takes or gives one of LibTorch's).
namespace ddp::compat {

// A hook for Node::add_post_hook. It runs `function(outputs, inputs)` after the node and returns
// its result. (LibTorch's LambdaPostHook cannot be used: its header does not compile by itself in
// 2.4. 2.x has a second member, for compiled autograd, whose default refuses; C++ programs do not
// compile their backward.)
template <typename Function>
std::unique_ptr<torch::autograd::FunctionPostHook> make_post_hook(Function function) {
  using torch::autograd::variable_list;
  struct Hook final : torch::autograd::FunctionPostHook {
    explicit Hook(Function function_in) : function(std::move(function_in)) {}
    variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
      return function(outputs, inputs);
    }
    Function function;
  };
  return std::make_unique<Hook>(std::move(function));
}

// What owns a node of the graph: std::shared_ptr, and c10::intrusive_ptr in 2.14.
using NodePtr =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

template <typename Node, typename... Arguments>
auto make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<Node>(std::forward<Arguments>(arguments)...);
  } else {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  }
}

// Autograd's record of the backward that runs on this thread, null outside of one. Its address
// tells backwards apart while they live. (2.x has get_current_graph_task_id() for it, 1.13 not.)
inline const void* current_backward() {
  return torch::autograd::get_current_graph_task_exec_info();
}

// The key of a parameter in a map such as Optimizer::state(): its address, as text in 1.13 and as a
// pointer in 2.x.
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
