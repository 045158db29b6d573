#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "worker/runtime/process_group.h"

namespace ddp {

namespace mesh {

// A value as bytes and back, to the bit.
std::string encode(const at::Tensor& tensor);
at::Tensor decode_tensor(std::string_view bytes);
// Every rank's bytes, in rank order.
std::vector<std::string> gather(const std::string& tag, std::string_view bytes,
                                ProcessGroup& group);

template <typename T>
std::string encode_value(const T& value) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return encode(value);
  } else {
    std::string bytes;
    nlohmann::json::to_cbor(nlohmann::json(value), bytes);
    return bytes;
  }
}

template <typename T>
T decode_value(std::string_view bytes) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return decode_tensor(bytes);
  } else {
    return nlohmann::json::from_cbor(bytes).get<T>();
  }
}

}  // namespace mesh

// Calls `reduce` with every rank's value, in rank order, and returns its result: torch_xla's
// mesh_reduce, for metrics and other small values.
//
//   const double accuracy = ddp::mesh_reduce("accuracy", mine, ddp::mean_of<double>, *group);
//
// The value is a tensor on the CPU, whose type and sizes may differ between ranks, or anything that
// converts to nlohmann::json and back: numbers, strings, vectors, maps, json itself, types with
// to_json and from_json. `reduce` is called with a std::vector of them. Collective; `tag` is named
// in errors, which are CollectiveError or what `reduce` throws.
template <typename T, typename Reduce>
auto mesh_reduce(const std::string& tag, const T& value, Reduce&& reduce, ProcessGroup& group) {
  std::vector<T> values;
  for (const std::string& bytes : mesh::gather(tag, mesh::encode_value(value), group)) {
    values.push_back(mesh::decode_value<T>(bytes));
  }
  return std::forward<Reduce>(reduce)(std::as_const(values));
}

template <typename T>
T sum_of(const std::vector<T>& values) {
  T sum = values.at(0);
  for (std::size_t at = 1; at < values.size(); ++at) sum = sum + values[at];
  return sum;
}

template <typename T>
T mean_of(const std::vector<T>& values) {
  return sum_of(values) / static_cast<double>(values.size());
}

}  // namespace ddp
