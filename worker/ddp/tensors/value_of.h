#pragma once

#include <stdexcept>
#include <type_traits>
#include <utility>

#include "common/base/result.h"

namespace ddp {

// For interfaces that throw: the value, or std::runtime_error with the error's text.
template <typename T>
T value_of(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

}  // namespace ddp
