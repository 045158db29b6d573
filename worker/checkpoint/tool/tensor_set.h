#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/tool/arguments.h"

namespace ddp::checkpoint {

// A tensor of a checkpoint or of a safetensors file. The bytes are mapped.
struct SetTensor {
  std::string name;
  Rank rank = kReplicated;
  TensorType type = TensorType::kU8;
  std::vector<std::int64_t> shape;
  MappedTensor data;

  // "name" or "name of rank 3".
  std::string title() const;
};

// The tensors at a path, on which a command works.
struct TensorSet {
  std::string path;                // Of the checkpoint or the file.
  std::vector<SetTensor> tensors;  // By rank and name; replicated ones first.
  bool is_checkpoint = false;
  Manifest manifest;  // Of a checkpoint.
};

// Opens a safetensors file, a checkpoint, or the newest valid checkpoint in a folder. A checkpoint
// has been verified when it returns; a file has no checksums. Prints a line to `err` for each
// checkpoint passed over. Failures as for reading.
Result<TensorSet> open_tensor_set(const std::string& path, std::ostream& err);

// Names of the modules in a checkpoint.
std::vector<std::string> module_names(const TensorSet& set);

// Keeps only the tensors of one module (the only one, if `module` is empty), under their names in
// the module, as in PyTorch. Keeps those of a plain file unchanged. kInvalidArgument, which lists
// the modules, if there is no such module, or if the name is empty and there is not exactly one.
Result<void> select_module(TensorSet& set, const std::string& module);

// Keeps only the tensors whose name matches the pattern. kNotFound if there are none.
Result<void> select_names(TensorSet& set, const std::string& pattern);

}  // namespace ddp::checkpoint
