#pragma once

#include <cstdint>
#include <memory>

#include "worker/ddp/averaging/comm_hook.h"
#include "worker/runtime/process_group.h"

namespace ddp {

struct QuantizationOptions {
  std::int64_t bucket_size = 512;  // Elements of a channel, for quantization_perchannel_hook.
  // Adds what a step's quantisation lost to the next step's gradients. PyTorch has none.
  bool use_error_feedback = false;
};

// State of the two hooks. One object for one model; used by the thread that runs the hook.
// Residuals are kept by parameter.
class QuantizationState {
 public:
  // Throws std::invalid_argument for a bucket_size below 1.
  explicit QuantizationState(std::shared_ptr<ProcessGroup> process_group,
                             QuantizationOptions options = {});
  ~QuantizationState();
  QuantizationState(const QuantizationState&) = delete;
  QuantizationState& operator=(const QuantizationState&) = delete;

  ProcessGroup& process_group() const { return *process_group_; }
  const QuantizationOptions& options() const { return options_; }

  // CommHook::state and restore. Per rank: "error/" and the parameter's name. restore needs the
  // options of the run that saved.
  CommHookState state() const;
  void restore(const CommHookState& state);

  struct Memory;  // For the hooks.
  Memory& memory() { return *memory_; }

 private:
  std::shared_ptr<ProcessGroup> process_group_;
  QuantizationOptions options_;
  std::unique_ptr<Memory> memory_;
};

// Every rank sends its gradients as bytes, with a scale and a zero point for each bucket (per
// tensor) or each run of bucket_size elements (per channel), as PyTorch's experimental hooks of
// these names, which need CUDA. Each rank gets the bytes of all others, decodes and averages them.
// The traffic grows with the size of the group, so beyond a few ranks it is more than that of plain
// averaging.
//
// The range is that of the values and zero; scale = (max - min) / 255, zero point = round(-min /
// scale), byte = round(value / scale) + zero point within 0 .. 255, all in float32. One operation
// carries scales and bytes, where PyTorch takes two. A range that is not finite gives NaN for the
// bucket or channel on all ranks.
Future quantization_pertensor_hook(QuantizationState& state, GradBucket& bucket);
Future quantization_perchannel_hook(QuantizationState& state, GradBucket& bucket);

}  // namespace ddp
