#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/safetensors.h"

namespace ddp::checkpoint {

// Writes a file that torch.load(weights_only=True) of any version reads as a plain dict from names
// to tensors, in this order, as torch.save of such a dict writes it: a zip of stored records, whose
// data begins at multiples of 64 bytes; the record data.pkl is the dict. Creates the file and makes
// its contents durable. kInvalidArgument, which names the tensor, for a type that torch.save's
// format lacks (U16, U32, U64, F8_E5M2, F8_E4M3); then nothing is created.
Result<void> write_pytorch(FileSystem& files, const std::string& path,
                           const std::vector<TensorView>& tensors);

}  // namespace ddp::checkpoint
