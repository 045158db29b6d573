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

// What a path has that a command works on.
struct TensorSet {
  std::string path;                // Of the checkpoint or the file.
  std::vector<SetTensor> tensors;  // By rank and name; replicated ones first.
  bool is_checkpoint = false;
  Manifest manifest;  // Of a checkpoint.
};

// A folder is a checkpoint or a folder of them, of which the newest valid one is taken; a file is
// one of safetensors. A checkpoint has been verified when it returns; a file has no checksums. One
// line to `err` for each checkpoint passed over. Failures as those of reading.
Result<TensorSet> open_tensor_set(const std::string& path, std::ostream& err);

// Names of the modules in a checkpoint.
std::vector<std::string> module_names(const TensorSet& set);

// Leaves the tensors of one module (or, with an empty name, of the only one), under the names that
// they have in the module, as PyTorch has them. Those of a plain file are taken as they are.
// kInvalidArgument, naming the modules that there are, if there is no such one or no single one.
Result<void> select_module(TensorSet& set, const std::string& module);

// Leaves the tensors whose name the pattern covers. kNotFound if there is none.
Result<void> select_names(TensorSet& set, const std::string& pattern);

}  // namespace ddp::checkpoint
