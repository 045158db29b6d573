#include "worker/ddp/hooks/quantization_hooks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "worker/ddp/hooks/bucket_cache.h"
#include "worker/ddp/hooks/bucket_text.h"
#include "worker/ddp/hooks/hook_state.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

constexpr float kMaxByte = 255;
// 1.5 * 2^23. Adding and subtracting it rounds what is smaller than 2^22 to a whole number, ties to
// even, in vector instructions.
constexpr float kRound = 12582912;

// How the bytes of a channel encode numbers.
struct Scale {
  float scale = 1;
  float zero_point = 0;
};

Scale scale_of(std::span<const float> values) {
  float low = 0;
  float high = 0;
  bool is_nan = false;
  for (const float value : values) {
    low = std::min(low, value);
    high = std::max(high, value);
    is_nan = is_nan || std::isnan(value);
  }
  const float range = (high - low) / kMaxByte;
  if (is_nan || !std::isfinite(range)) return {std::numeric_limits<float>::quiet_NaN(), 0};
  const float scale = std::max(range, std::numeric_limits<float>::epsilon());
  return {scale, std::clamp(-std::nearbyint(low / scale), 0.0F, kMaxByte)};
}

void quantize(std::span<const float> values, Scale scale, std::uint8_t* bytes) {
  if (std::isnan(scale.scale)) {
    std::memset(bytes, 0, values.size());
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float level = (values[i] / scale.scale + kRound) - kRound + scale.zero_point;
    bytes[i] = static_cast<std::uint8_t>(std::clamp(level, 0.0F, kMaxByte));
  }
}

float dequantize(std::uint8_t byte, Scale scale) {
  return scale.scale * (static_cast<float>(byte) - scale.zero_point);
}

// A rank's message: a Scale for each channel, then a byte for each element.
class Message {
 public:
  Message(std::uint8_t* start, std::int64_t numel, std::int64_t channel)
      : scales_(start),
        bytes_(start + scale_bytes(numel, channel)),
        numel_(numel),
        channel_(channel) {}

  static std::int64_t scale_bytes(std::int64_t numel, std::int64_t channel) {
    return (numel + channel - 1) / channel * static_cast<std::int64_t>(sizeof(Scale));
  }
  static std::int64_t size(std::int64_t numel, std::int64_t channel) {
    return scale_bytes(numel, channel) + numel;
  }

  void write(const float* values) const {
    each_channel([&](std::int64_t index, std::int64_t begin, std::int64_t count) {
      const std::span<const float> part(values + begin, static_cast<std::size_t>(count));
      const Scale scale = scale_of(part);
      std::memcpy(scales_ + index * static_cast<std::int64_t>(sizeof scale), &scale, sizeof scale);
      quantize(part, scale, bytes_ + begin);
    });
  }

  // Calls f(element's index, its value).
  template <typename Function>
  void read(Function f) const {
    each_channel([&](std::int64_t index, std::int64_t begin, std::int64_t count) {
      Scale scale;
      std::memcpy(&scale, scales_ + index * static_cast<std::int64_t>(sizeof scale), sizeof scale);
      for (std::int64_t i = begin; i < begin + count; ++i) f(i, dequantize(bytes_[i], scale));
    });
  }

 private:
  template <typename Function>
  void each_channel(Function f) const {
    std::int64_t index = 0;
    for (std::int64_t begin = 0; begin < numel_; begin += channel_, ++index) {
      f(index, begin, std::min(channel_, numel_ - begin));
    }
  }

  std::uint8_t* scales_;
  std::uint8_t* bytes_;
  std::int64_t numel_;
  std::int64_t channel_;
};

}  // namespace

// What the hooks have for a bucket.
struct QuantizedBucket {
  std::string text;
  std::int64_t channel = 0;
  at::Tensor values;  // What is sent in bytes; with error feedback, afterwards what is owed.
  at::Tensor sent;
  at::Tensor received;  // Of all ranks.
};

struct QuantizationState::Memory {
  NamedTensors errors;
  BucketCache<QuantizedBucket> buckets;
};

QuantizationState::QuantizationState(std::shared_ptr<ProcessGroup> process_group,
                                     QuantizationOptions options)
    : process_group_(std::move(process_group)),
      options_(options),
      memory_(std::make_unique<Memory>()) {
  if (!process_group_) throw std::invalid_argument("QuantizationState was given no process group");
  if (options_.bucket_size < 1) {
    throw std::invalid_argument(fmt::format(
        "QuantizationState: bucket_size must be at least 1, not {}", options_.bucket_size));
  }
}

QuantizationState::~QuantizationState() = default;

CommHookState QuantizationState::state() const {
  CommHookState state;
  state.values = {{"options", {{"use_error_feedback", options_.use_error_feedback}}}};
  copy_to(state.per_rank, "error/", memory_->errors);
  return state;
}

void QuantizationState::restore(const CommHookState& state) {
  const HookStateReader reader("QuantizationState", state);
  reader.expect_options({{"use_error_feedback", options_.use_error_feedback}});
  NamedTensors errors;
  reader.take(state.per_rank, {{"error/", &errors}});
  reader.take(state.replicated, {});
  memory_->errors = std::move(errors);
  memory_->buckets.clear();
}

namespace {

std::shared_ptr<QuantizedBucket> memory_of(QuantizationState& state, const GradBucket& bucket,
                                           std::int64_t channel) {
  QuantizationState::Memory& memory = state.memory();
  if (auto found = memory.buckets.find(bucket)) return found;
  ProcessGroup& group = state.process_group();
  const std::int64_t numel = bucket.buffer().numel();
  const std::int64_t size = Message::size(numel, channel);
  auto made = std::make_shared<QuantizedBucket>();
  made->text = bucket_text(bucket) + " as uint8";
  made->channel = channel;
  made->values = at::zeros({numel}, at::TensorOptions(at::kFloat));
  made->sent = registered_zeros(group, size, at::kByte);
  made->received = registered_zeros(group, size * group.size(), at::kByte);
  if (state.options().use_error_feedback) {
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < bucket.names().size(); ++i) {
      const std::int64_t count = bucket.gradients()[i].numel();
      move_to(memory.errors, bucket.names()[i], made->values.narrow(0, offset, count),
              "the quantisation's error");
      offset += count;
    }
  }
  memory.buckets.put(bucket, made);
  return made;
}

Future quantize_hook(QuantizationState& state, GradBucket& bucket, std::int64_t channel) {
  const at::Tensor buffer = bucket.buffer();
  const bool feeds_back = state.options().use_error_feedback;
  const std::shared_ptr<QuantizedBucket> made =
      memory_of(state, bucket, std::max<std::int64_t>(channel, 1));
  if (feeds_back) {
    made->values.add_(buffer);
  } else {
    made->values.copy_(buffer);
  }
  float* const values = made->values.data_ptr<float>();
  const Message mine(made->sent.data_ptr<std::uint8_t>(), buffer.numel(), made->channel);
  mine.write(values);
  if (feeds_back) mine.read([values](std::int64_t i, float value) { values[i] -= value; });
  WorkPtr work = state.process_group().all_gather(buffer_of(made->sent), buffer_of(made->received),
                                                  {{}, made->text});
  const int size = state.process_group().size();
  return Future(std::move(work), buffer).then([made, size](const at::Tensor& result) {
    at::Tensor sum = at::zeros({result.numel()}, at::TensorOptions(at::kFloat));
    float* const sums = sum.data_ptr<float>();
    const std::int64_t bytes = made->sent.numel();
    for (int rank = 0; rank < size; ++rank) {
      const Message theirs(made->received.data_ptr<std::uint8_t>() + rank * bytes, result.numel(),
                           made->channel);
      theirs.read([sums](std::int64_t i, float value) { sums[i] += value; });
    }
    result.copy_(sum.div_(size));
    return result;
  });
}

}  // namespace

Future quantization_pertensor_hook(QuantizationState& state, GradBucket& bucket) {
  return quantize_hook(state, bucket, bucket.buffer().numel());
}

Future quantization_perchannel_hook(QuantizationState& state, GradBucket& bucket) {
  return quantize_hook(state, bucket, state.options().bucket_size);
}

}  // namespace ddp
