#include "worker/ddp/bucket_buffers.h"

#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "worker/ddp/tensors.h"

namespace ddp {

std::string bucket_tag(std::size_t index, const std::vector<BucketLayout>& layouts,
                       const std::vector<NamedTensor>& parameters) {
  const BucketLayout& layout = layouts[index];
  const std::string& first = parameters[layout.slots.back().parameter].name;
  const std::string& last = parameters[layout.slots.front().parameter].name;
  if (layout.slots.size() == 1) {
    return fmt::format("bucket {} of {} ({})", index, layouts.size(), first);
  }
  return fmt::format("bucket {} of {} ({} .. {})", index, layouts.size(), first, last);
}

std::vector<GradBucket> make_grad_buckets(const std::vector<BucketLayout>& layouts,
                                          const std::vector<NamedTensor>& parameters,
                                          ProcessGroup& group, std::optional<at::ScalarType> type) {
  std::vector<GradBucket> buckets;
  buckets.reserve(layouts.size());
  for (std::size_t index = 0; index < layouts.size(); ++index) {
    const BucketLayout& layout = layouts[index];
    const at::ScalarType element_type =
        type.value_or(parameters[layout.slots.front().parameter].tensor.scalar_type());
    const std::size_t element_bytes = at::elementSize(element_type);
    GradBucket::Contents contents;
    contents.index = index;
    contents.is_last = index + 1 == layouts.size();
    contents.buffer = registered_zeros(
        group, static_cast<std::int64_t>(layout.bytes / element_bytes), element_type);
    for (const BucketSlot& slot : layout.slots) {
      const NamedTensor& parameter = parameters[slot.parameter];
      contents.gradients.push_back(
          slot_of(contents.buffer, static_cast<std::int64_t>(slot.offset_bytes / element_bytes),
                  parameter.tensor));
      contents.parameters.push_back(parameter.tensor);
      contents.names.push_back(parameter.name);
    }
    buckets.emplace_back(std::move(contents));
  }
  return buckets;
}

}  // namespace ddp
