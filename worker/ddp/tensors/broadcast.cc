#include "worker/ddp/tensors/broadcast.h"

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

// Above this a copy costs more than a broadcast of its own.
constexpr std::size_t kLargeBytes = std::size_t{1} << 20;
constexpr std::size_t kStagingBytes = std::size_t{4} << 20;

bool travels_alone(const at::Tensor& tensor) { return tensor.nbytes() >= kLargeBytes; }

// Places in the staging buffer are not aligned for the element type, so they are only ever
// addressed as bytes.
void pack(const at::Tensor& tensor, std::uint8_t* bytes) {
  if (tensor.numel() == 0) return;
  const at::Tensor packed = on_host(tensor);
  std::memcpy(bytes, packed.data_ptr(), packed.nbytes());
}

void unpack(const std::uint8_t* bytes, const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  if (is_packed(tensor) && tensor.device().is_cpu()) {
    std::memcpy(tensor.data_ptr(), bytes, tensor.nbytes());
    tensor.unsafeGetTensorImpl()->bump_version();
    return;
  }
  const at::Tensor packed = at::empty_strided(tensor.sizes(), packed_strides(tensor),
                                              at::TensorOptions(tensor.scalar_type()));
  std::memcpy(packed.data_ptr(), bytes, packed.nbytes());
  copy_values(tensor, packed);
}

}  // namespace

CoalescedBroadcast::CoalescedBroadcast(std::vector<at::Tensor> tensors)
    : tensors_(std::move(tensors)) {
  for (const at::Tensor& tensor : tensors_) {
    if (tensor.layout() != at::kStrided) {
      throw std::invalid_argument(
          fmt::format("cannot broadcast a tensor ({}) on {}: only dense tensors can be sent",
                      describe(tensor), tensor.device().str()));
    }
  }
}

void CoalescedBroadcast::run(ProcessGroup& group, Rank root, const SharedText& tag) {
  if (group.size() == 1) return;
  const Route route{group, root, tag};
  std::size_t first = 0;
  while (first < tensors_.size()) {
    if (travels_alone(tensors_[first])) {
      broadcast_one(tensors_[first++], route);
      continue;
    }
    std::size_t last = first;
    std::size_t bytes = 0;
    while (last < tensors_.size() && !travels_alone(tensors_[last]) && bytes < kStagingBytes) {
      bytes += tensors_[last++].nbytes();
    }
    if (staging_.size() < bytes) staging_.resize(bytes);
    broadcast_packed(first, last, route);
    first = last;
  }
}

void CoalescedBroadcast::broadcast_one(const at::Tensor& tensor, const Route& route) {
  const at::Tensor packed = on_host(tensor);
  route.group
      .broadcast({packed.data_ptr(), packed.nbytes(), DType::kU8}, route.root, {{}, route.tag})
      ->wait();
  if (route.group.rank() == route.root) return;
  if (packed.is_same(tensor)) {
    tensor.unsafeGetTensorImpl()->bump_version();
  } else {
    copy_values(tensor, packed);
  }
}

void CoalescedBroadcast::broadcast_packed(std::size_t first, std::size_t last, const Route& route) {
  const bool is_root = route.group.rank() == route.root;
  std::size_t bytes = 0;
  for (std::size_t i = first; i < last; ++i) {
    if (is_root) pack(tensors_[i], staging_.data() + bytes);
    bytes += tensors_[i].nbytes();
  }
  if (bytes == 0) return;
  route.group.broadcast({staging_.data(), bytes, DType::kU8}, route.root, {{}, route.tag})->wait();
  if (is_root) return;
  bytes = 0;
  for (std::size_t i = first; i < last; ++i) {
    unpack(staging_.data() + bytes, tensors_[i]);
    bytes += tensors_[i].nbytes();
  }
}

}  // namespace ddp
