#pragma once

#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace ddp {

struct RegisteredState;

// LibTorch's default generators, from which dropout and initialization draw. What takes or gives a
// state takes the generator's lock; any thread.
struct DefaultGenerator {
  std::string name;  // In checkpoints.
  at::Generator generator;
  bool is_of_device = false;
};

// The CPU's, called `name`, and those of the devices that the registered modules are on. NAME/cuda0
// is that of the first such device, whatever its number: a rank may come back on another one.
std::vector<DefaultGenerator> generators_of(const RegisteredState& state, const std::string& name);

// A copy: what is drawn later does not change it.
at::Tensor generator_state(at::Generator generator);
// state: as generator_state() gave it, perhaps in another process. Throws c10::Error if it is none.
void set_generator_state(at::Generator generator, const at::Tensor& state);

// The same of the CPU's.
at::Tensor generator_state();
void set_generator_state(const at::Tensor& state);

}  // namespace ddp
