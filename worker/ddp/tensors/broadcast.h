#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/runtime/process_group.h"

namespace ddp {

// Gives tensors of any element type the values that they have on one rank. Small tensors travel
// together. The tensors have the same sizes, types and strides on all ranks (verify_same_model sees
// to that). Those that are not on the CPU go through host memory; `group` is one of host memory.
//
// Keeps a staging buffer between calls, so that repeating it allocates nothing. Used by one thread;
// every call is collective and throws CollectiveError.
class CoalescedBroadcast {
 public:
  explicit CoalescedBroadcast(std::vector<at::Tensor> tensors);

  // Returns when all tensors have the root's values. `tag` is named in errors.
  void run(ProcessGroup& group, Rank root, const SharedText& tag);

  bool empty() const { return tensors_.empty(); }

 private:
  struct Route {
    ProcessGroup& group;
    Rank root;
    const SharedText& tag;
  };
  void broadcast_one(const at::Tensor& tensor, const Route& route);
  void broadcast_packed(std::size_t first, std::size_t last, const Route& route);

  std::vector<at::Tensor> tensors_;
  std::vector<std::uint8_t> staging_;
};

}  // namespace ddp
