#pragma once

#include <memory>

#include "worker/ddp/state/optimizer_state.h"
#include "worker/ddp/tensors/module_state.h"
#include "worker/python/native/python_call.h"

// State of Python's objects under the interfaces that ElasticState and Checkpointer have for C++'s.
namespace ddp::python {

// Python tells of a tensor as (name, tensor). If it is divided among the ranks: (name, local, (dim,
// begin, rows, sizes)), with the arguments of divided_along().

// tensors() -> (parameters, buffers): a list of tensors each, shared ones under each of their
// names.
ModuleState module_state(const KeptObject& tensors);

// describe() -> (description, tensors): as FORMAT.md says it of an optimizer, and a list of
// tensors. stage(description, sizes, read) -> apply: the sizes by name of the tensors there are;
// read(name) is a new tensor, read(name, (dim, begin, count)) some rows of it; apply() changes the
// optimizer and does not fail. stage raises ValueError if the state is another optimizer's.
std::unique_ptr<OptimizerState> make_optimizer_state(KeptObject describe, KeptObject stage);

}  // namespace ddp::python
