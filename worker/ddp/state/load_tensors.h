#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/base/result.h"

namespace ddp {

// Chooses the device of a tensor by its name ("net/conv1.weight"), like torch.load's map_location.
using MapLocation = std::function<at::Device(std::string_view name)>;

struct LoadTensorsOptions {
  // Only what one of these covers: `*` is any characters, `?` one. Empty: all.
  std::vector<std::string> names = {};
  MapLocation map_location = {};  // Empty: everything on the CPU.
  std::int64_t step = -1;         // The checkpoint of this step; -1: the newest valid one.
};

struct LoadedTensors {
  std::int64_t step = -1;
  std::string path;  // Of the checkpoint.
  // Parameters and buffers by NAME/PARAMETER, NAME as add_module() had it.
  std::map<std::string, at::Tensor> tensors;
  // One line for each newer checkpoint passed over: which and why.
  std::vector<std::string> skipped;
};

// The tensors of modules in a folder of checkpoints, for programs that have no process group or not
// that model: evaluation, export, a look at the weights, a start for another training. Checkpointer
// is for resuming; it puts every tensor where the program's own is.
//
//   auto loaded = ddp::load_tensors("run1", {.names = {"net/*"}, .map_location = [](auto) {
//     return at::Device(at::kCUDA, 0);
//   }});
//
// Reads and checks the tensors that are asked for and nothing else, so a damaged byte elsewhere
// does no harm; a checkpoint in which one of them is damaged is passed over. The tensors are new
// and the caller's. Any thread; may run while a job saves into the folder.
//
// kNotFound: the folder has no (valid) checkpoint, or not that step; the lines of what was passed
// over are in the message. kMismatch: a name covers nothing that the checkpoint has. kIo: the
// folder cannot be read. Exceptions of the device's allocator or of map_location pass through.
Result<LoadedTensors> load_tensors(const std::string& directory,
                                   const LoadTensorsOptions& options = {});

}  // namespace ddp
