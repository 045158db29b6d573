#include "worker/ddp/averaging/bucket_route.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "worker/ddp/tensors/tensors.h"

namespace ddp {

int device_number(const c10::Device& device, std::vector<c10::Device>& seen) {
  const auto at = std::find(seen.begin(), seen.end(), device);
  const auto number = static_cast<int>(at - seen.begin());
  if (at == seen.end()) seen.push_back(device);
  return number;
}

void check_device_groups(const std::vector<DeviceGroup>& groups, const ProcessGroup& host) {
  std::vector<c10::Device> seen;
  for (const DeviceGroup& entry : groups) {
    const auto refuse = [&](const std::string& problem) {
      throw std::invalid_argument(
          fmt::format("device_groups: the one for {} {}", entry.device.str(), problem));
    };
    if (!entry.group) refuse("is null");
    if (entry.device.is_cpu()) refuse("is not needed: the process group handles host memory");
    if (entry.group->size() != host.size() || entry.group->rank() != host.rank()) {
      refuse(
          fmt::format("has this process as rank {} of {}, but the process group as rank {} of {}",
                      entry.group->rank(), entry.group->size(), host.rank(), host.size()));
    }
    const std::size_t different = seen.size();
    device_number(entry.device, seen);
    if (seen.size() == different) refuse("is listed twice");
  }
}

void abort_all(ProcessGroup& host, const std::vector<DeviceGroup>& groups,
               const std::string& reason) {
  if (host.size() == 1) return;
  host.abort(reason);
  for (const DeviceGroup& entry : groups) entry.group->abort(reason);
}

BucketRoute::BucketRoute(GradBucket& bucket, ProcessGroup& host,
                         const std::vector<DeviceGroup>& groups)
    : bucket_(bucket), host_(host) {
  const c10::Device device = bucket.buffer().device();
  if (device.is_cpu()) direct_ = &host;
  for (const DeviceGroup& entry : groups) {
    if (entry.device == device) direct_ = entry.group.get();
  }
}

GradBucket& BucketRoute::copy() {
  is_in_copy_ = true;
  if (copy_) return *copy_;
  GradBucket::Contents contents;
  contents.index = bucket_.index();
  contents.is_last = bucket_.is_last();
  contents.buffer =
      registered_zeros(host_, bucket_.buffer().numel(), bucket_.buffer().scalar_type());
  contents.parameters = bucket_.parameters();
  contents.names = bucket_.names();
  contents.gradients = slots_of(contents.buffer, contents.parameters);
  copy_ = std::make_unique<GradBucket>(std::move(contents));
  return *copy_;
}

WorkPtr BucketRoute::all_reduce(std::size_t offset_bytes, std::size_t bytes, const ReduceOp& op,
                                OpOptions options) {
  const at::Tensor& gradients = bucket_.buffer();
  const auto element_bytes = static_cast<std::size_t>(gradients.element_size());
  const bool is_direct = direct_ != nullptr;
  const at::Tensor& reduced = is_direct ? gradients : copy().buffer();
  if (!is_direct) {
    const auto first = static_cast<std::int64_t>(offset_bytes / element_bytes);
    const auto count = static_cast<std::int64_t>(bytes / element_bytes);
    copy_values(reduced.narrow(0, first, count), gradients.narrow(0, first, count));
  }
  Buffer part = device_buffer_of(reduced);
  part.data = static_cast<std::byte*>(part.data) + offset_bytes;
  part.count = bytes / element_bytes;
  return (is_direct ? *direct_ : host_).all_reduce(part, op, std::move(options));
}

GradBucket& BucketRoute::on_host() {
  if (bucket_.buffer().device().is_cpu()) return bucket_;
  copy_values(copy().buffer(), bucket_.buffer());
  return *copy_;
}

void BucketRoute::land() {
  if (std::exchange(is_in_copy_, false)) copy_values(bucket_.buffer(), copy_->buffer());
}

}  // namespace ddp
