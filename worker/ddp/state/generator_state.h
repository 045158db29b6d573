#pragma once

#include <ATen/core/Tensor.h>

// The state of LibTorch's default CPU generator, from which dropout and initialization draw. Both
// take the generator's lock; any thread.
namespace ddp {

// A copy: what is drawn later does not change it.
at::Tensor generator_state();
// state: as generator_state() gave it, perhaps in another process. Throws c10::Error if it is none.
void set_generator_state(const at::Tensor& state);

}  // namespace ddp
