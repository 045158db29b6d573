#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

// The tensors in what a module's forward returns: tensors, and vectors, arrays, pairs, tuples,
// optionals and maps of these. For your own type, declare in its namespace
//
//   void collect_outputs(const MyOutput& output, std::vector<at::Tensor>& tensors);
//
// Other types are skipped.
namespace ddp {

namespace outputs {

struct Collector {
  std::vector<at::Tensor>& tensors;

  void add(const at::Tensor& tensor) { tensors.push_back(tensor); }
  template <typename First, typename Second>
  void add(const std::pair<First, Second>& both) {
    add(both.first);
    add(both.second);
  }
  template <typename... Items>
  void add(const std::tuple<Items...>& items) {
    std::apply([this](const Items&... each) { (add(each), ...); }, items);
  }
  template <typename Item>
  void add(const std::optional<Item>& item) {
    if (item) add(*item);
  }
  template <typename T>
  void add(const T& output) {
    if constexpr (requires { collect_outputs(output, tensors); }) {
      collect_outputs(output, tensors);
    } else if constexpr (requires {
                           output.begin();
                           output.end();
                           typename T::value_type;
                         }) {
      if constexpr (requires { typename T::mapped_type; }) {
        for (const auto& [key, value] : output) add(value);
      } else if constexpr (!std::is_arithmetic_v<typename T::value_type>) {
        for (const auto& item : output) add(item);
      }
    }
  }
};

}  // namespace outputs

template <typename Output>
std::vector<at::Tensor> tensors_of_output(const Output& output) {
  std::vector<at::Tensor> tensors;
  outputs::Collector{tensors}.add(output);
  return tensors;
}

}  // namespace ddp
