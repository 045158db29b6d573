#pragma once

#include <cstddef>
#include <utility>

namespace ddp::test {

// Stands for a value of any type where only the type matters.
struct AnyValue {
  template <typename T>
  operator T() const;  // NOLINT(google-explicit-constructor): any type, without a cast.
};

template <typename T, std::size_t... kIndex>
constexpr bool takes_members(std::index_sequence<kIndex...> /*indices*/) {
  return requires { T{(static_cast<void>(kIndex), AnyValue{})...}; };
}

// How many members the struct has: the most values that its braces take. A test that compares this
// with what was written finds the member that a list forgets.
template <typename T, std::size_t kAtMost = 64>
constexpr std::size_t member_count() {
  if constexpr (takes_members<T>(std::make_index_sequence<kAtMost>())) {
    return kAtMost;
  } else {
    static_assert(kAtMost > 0);
    return member_count<T, kAtMost - 1>();
  }
}

}  // namespace ddp::test
