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

#include "worker/ddp/hooks/bucket_text.h"
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

Future quantize_hook(ProcessGroup& group, GradBucket& bucket, std::int64_t channel) {
  const at::Tensor buffer = bucket.buffer();
  const std::int64_t numel = buffer.numel();
  const std::int64_t bytes = Message::size(numel, channel);
  const int ranks = group.size();
  at::Tensor& memory = bucket.scratch(at::kByte);  // Of all ranks' messages, behind the own one.
  if (!memory.defined() || memory.numel() != bytes * (1 + ranks)) {
    memory = registered_zeros(group, bytes * (1 + ranks), at::kByte);
  }
  SharedText& label = bucket.label(at::kByte);
  if (label.empty()) label = bucket_text(bucket) + " as uint8";
  const at::Tensor values = buffer.to(at::kFloat);
  const at::Tensor sent = memory.narrow(0, 0, bytes);
  const at::Tensor received = memory.narrow(0, bytes, bytes * ranks);
  Message(sent.data_ptr<std::uint8_t>(), numel, channel).write(values.data_ptr<float>());
  WorkPtr work = group.all_gather(buffer_of(sent), buffer_of(received), {{}, label});
  return Future(std::move(work), buffer).then([=](const at::Tensor& result) {
    at::Tensor sum = at::zeros({numel}, at::TensorOptions(at::kFloat));
    float* const sums = sum.data_ptr<float>();
    for (int rank = 0; rank < ranks; ++rank) {
      const Message theirs(received.data_ptr<std::uint8_t>() + rank * bytes, numel, channel);
      theirs.read([sums](std::int64_t i, float value) { sums[i] += value; });
    }
    result.copy_(sum.div_(ranks));
    return result;
  });
}

}  // namespace

Future quantization_pertensor_hook(ProcessGroup& process_group, GradBucket& bucket) {
  return quantize_hook(process_group, bucket, std::max<std::int64_t>(bucket.buffer().numel(), 1));
}

Future quantization_perchannel_hook(ProcessGroup& process_group, GradBucket& bucket,
                                    std::int64_t bucket_size) {
  if (bucket_size < 1) {
    throw std::invalid_argument(fmt::format(
        "quantization_perchannel_hook: bucket_size must be at least 1, not {}", bucket_size));
  }
  return quantize_hook(process_group, bucket, bucket_size);
}

}  // namespace ddp
