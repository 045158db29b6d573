#include "worker/ddp/averaging/bucket_buffers.h"

#include <cstdint>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "worker/ddp/tensors/tensors.h"

namespace ddp {

namespace {

// From the parameter defined first to the one defined last.
std::string span_of(const buckets::BucketLayout& layout,
                    const std::vector<NamedTensor>& parameters) {
  const std::string& first = parameters[layout.slots.back().parameter].name;
  const std::string& last = parameters[layout.slots.front().parameter].name;
  return layout.slots.size() == 1 ? first : fmt::format("{} .. {}", first, last);
}

}  // namespace

BucketNames bucket_names(const std::vector<buckets::BucketLayout>& layouts,
                         const std::vector<NamedTensor>& parameters) {
  BucketNames result;
  for (const buckets::BucketLayout& layout : layouts) {
    result.emplace_back();
    for (const buckets::BucketSlot& slot : layout.slots) {
      result.back().push_back(parameters[slot.parameter].name);
    }
  }
  return result;
}

std::string bucket_tag(std::size_t index, const std::vector<buckets::BucketLayout>& layouts,
                       const std::vector<NamedTensor>& parameters) {
  return fmt::format("bucket {} of {} ({})", index, layouts.size(),
                     span_of(layouts[index], parameters));
}

std::string piece_tag(const buckets::BucketPiece& piece, std::size_t number, std::size_t count,
                      const std::vector<buckets::BucketLayout>& layouts,
                      const std::vector<NamedTensor>& parameters) {
  if (count == 1) return bucket_tag(piece.bucket, layouts, parameters);
  return fmt::format("bucket {} of {}, piece {} of {} ({})", piece.bucket, layouts.size(), number,
                     count, span_of(buckets::layout_of(piece, layouts), parameters));
}

namespace {

at::Tensor zeros_on(const at::Device& device, ProcessGroup& group, std::int64_t elements,
                    at::ScalarType type) {
  if (device.is_cpu()) return registered_zeros(group, elements, type);
  return at::zeros({elements}, at::TensorOptions(type).device(device));
}

}  // namespace

std::vector<GradBucket> make_grad_buckets(const std::vector<buckets::BucketLayout>& layouts,
                                          const std::vector<NamedTensor>& parameters,
                                          ProcessGroup& group, std::optional<at::ScalarType> type) {
  std::vector<GradBucket> buckets;
  buckets.reserve(layouts.size());
  for (std::size_t index = 0; index < layouts.size(); ++index) {
    const buckets::BucketLayout& layout = layouts[index];
    const at::ScalarType element_type =
        type.value_or(parameters[layout.slots.front().parameter].tensor.scalar_type());
    GradBucket::Contents contents;
    contents.index = index;
    contents.is_last = index + 1 == layouts.size();
    contents.buffer = zeros_on(
        parameters[layout.slots.front().parameter].tensor.device(), group,
        static_cast<std::int64_t>(layout.bytes / at::elementSize(element_type)), element_type);
    for (const buckets::BucketSlot& slot : layout.slots) {
      contents.parameters.push_back(parameters[slot.parameter].tensor);
      contents.names.push_back(parameters[slot.parameter].name);
    }
    contents.gradients = slots_of(contents.buffer, contents.parameters);
    buckets.emplace_back(std::move(contents));
  }
  return buckets;
}

}  // namespace ddp
