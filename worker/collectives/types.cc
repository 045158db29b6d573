#include "worker/collectives/types.h"

#include <iterator>

namespace ddp {

const char* name_of(DType type) {
  constexpr const char* kNames[] = {"u8", "i8", "i32", "i64", "f16", "bf16", "f32", "f64"};
  static_assert(std::size(kNames) == kDTypes);
  const auto index = static_cast<std::size_t>(type);
  return index < kDTypes ? kNames[index] : "elements of an unknown type";
}

const char* name_of(ReduceOp op) {
  constexpr const char* kNames[] = {"sum",  "avg", "prod", "min",       "max",
                                    "band", "bor", "bxor", "premul_sum"};
  static_assert(std::size(kNames) == ReduceOp::kKinds);
  return op.kind() < ReduceOp::kKinds ? kNames[op.kind()] : "an unknown reduction";
}

}  // namespace ddp
