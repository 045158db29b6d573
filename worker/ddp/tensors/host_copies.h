#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace ddp {

// Copies of tensors into host memory, for state that is kept while training goes on. Those from
// other devices go one behind the other into the device's current stream, and the caller waits
// once, not for each. One thread.
class HostCopies {
 public:
  HostCopies() = default;
  ~HostCopies();  // Waits, and ignores failures.
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // Begins to copy the tensor's values, row-major, to memory for so many bytes. Changes that the
  // device's stream makes later do not matter. The memory must stay until wait().
  void start(std::byte* to, const at::Tensor& from);
  // Returns when all values are there. Throws what the devices report.
  void wait();

 private:
  std::vector<c10::Device> devices_;  // That may still be copying.
};

}  // namespace ddp
