#include "worker/train/models/two_stage.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <ATen/ops/cat.h>

namespace ddp::train {

at::Tensor TwoStageModel::forward(const at::Tensor& input) {
  if (pipeline_) return pipeline_->forward(input);
  return devices_.empty() ? back(front(input)) : forward_by_devices(input);
}

void TwoStageModel::split(c10::Device front_device, c10::Device back_device,
                          std::int64_t micro_batches) {
  Pipeline::Stage first{[this](const at::Tensor& x) { return front(x); }, {}};
  Pipeline::Stage second{[this](const at::Tensor& x) { return back(x); }, {}};
  const std::vector<std::string> names = front_children();
  for (const auto& child : named_children()) {
    const bool in_front = std::find(names.begin(), names.end(), child.key()) != names.end();
    child.value()->to(in_front ? front_device : back_device);
    std::vector<at::Tensor>& parameters = (in_front ? first : second).parameters;
    for (const at::Tensor& parameter : child.value()->parameters()) parameters.push_back(parameter);
  }
  if (front_device.is_cpu() && back_device.is_cpu()) {
    pipeline_ = std::make_unique<Pipeline>(std::move(first), std::move(second), micro_batches);
  } else {
    devices_ = {front_device, back_device};
    micro_batches_ = micro_batches;
  }
}

at::Tensor TwoStageModel::forward_by_devices(const at::Tensor& input) {
  const std::vector<at::Tensor> micros = cut_batch(input, micro_batches_);
  const auto boundary = [&](std::size_t micro) {
    return front(micros[micro].to(devices_[0])).to(devices_[1]);
  };
  std::vector<at::Tensor> outputs;
  at::Tensor waiting = boundary(0);
  for (std::size_t micro = 1; micro < micros.size(); ++micro) {
    at::Tensor next = boundary(micro);
    outputs.push_back(back(std::exchange(waiting, std::move(next))));
  }
  outputs.push_back(back(waiting));
  return outputs.size() == 1 ? outputs[0] : at::cat(outputs);
}

}  // namespace ddp::train
