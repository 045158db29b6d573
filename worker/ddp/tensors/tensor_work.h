#pragma once

#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/runtime/process_group.h"

namespace ddp {

// Where the result of an operation has to be copied when it is done.
struct Landing {
  at::Tensor to;
  at::Tensor from;
};

// The Work of an operation on tensors: keeps the memory that the operation uses, and copies its
// result to where it belongs. Thread safe.
//
// If it is destroyed before the operation is done, the landings are not made. The memory is kept
// until the operation is done and the process makes another TensorWork.
class TensorWork final : public Work {
 public:
  TensorWork(WorkPtr work, std::vector<at::Tensor> used, std::vector<Landing> landings);
  ~TensorWork() override;
  TensorWork(const TensorWork&) = delete;
  TensorWork& operator=(const TensorWork&) = delete;

  bool done() const override;
  void wait() override;
  void start() override { work_->start(); }

 private:
  void land() const;

  const WorkPtr work_;
  std::vector<at::Tensor> used_;
  mutable std::mutex mutex_;
  mutable std::vector<Landing> landings_;  // That have not been carried out.
};

}  // namespace ddp
