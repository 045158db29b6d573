#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "worker/train/models/model.h"
#include "worker/train/models/pipeline.h"

namespace ddp::train {

// A model that can be cut in two: the back takes the output of the front. Before split(), both run
// on the calling thread.
class TwoStageModel : public Model {
 public:
  at::Tensor forward(const at::Tensor& input) final;

  // Puts the halves on two devices and cuts batches into micro-batches from now on. Two CPU halves
  // get a thread each (Pipeline). Other devices run asynchronously what the calling thread issues:
  // it issues the front's work on the next micro-batch before the back's work on this one, so both
  // devices are busy, in backward too.
  void split(c10::Device front_device, c10::Device back_device, std::int64_t micro_batches);

 protected:
  virtual at::Tensor front(const at::Tensor& input) = 0;
  virtual at::Tensor back(const at::Tensor& boundary) = 0;
  // Names of the direct children that front() uses; back() uses all others.
  virtual std::vector<std::string> front_children() const = 0;

 private:
  at::Tensor forward_by_devices(const at::Tensor& input);

  std::unique_ptr<Pipeline> pipeline_;
  std::vector<c10::Device> devices_;  // Two after split() without a pipeline.
  std::int64_t micro_batches_ = 1;
};

}  // namespace ddp::train
