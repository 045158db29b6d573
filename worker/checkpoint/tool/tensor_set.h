#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "worker/checkpoint/reader.h"

namespace ddp::checkpoint {

// A tensor of a checkpoint or of a safetensors file. The bytes are mapped.
struct SetTensor {
  std::string name;
  TensorType type = TensorType::kU8;
  std::vector<std::int64_t> shape;
  MappedTensor data;
};

struct TensorSet {
  std::string path;                // Of the checkpoint or the file.
  std::vector<SetTensor> tensors;  // By name.
};

// The tensors of one module (the only one, if `module` is empty) of the checkpoint `path`, or of
// the newest valid one in the folder `path`, under their names in the module, as in PyTorch. They
// have been verified when it returns. Prints a line to `err` for each checkpoint passed over.
// kInvalidArgument, which lists the modules, if there is no such module, or if the name is empty
// and there is not exactly one; other failures as for reading.
Result<TensorSet> open_module(const std::string& path, const std::string& module,
                              std::ostream& err);

// The tensors of a safetensors file, which has no checksums.
Result<TensorSet> open_safetensors(const std::string& path);

}  // namespace ddp::checkpoint
