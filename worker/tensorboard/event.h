#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace ddp::tensorboard {

// A point of the curve `tag`. TensorBoard keeps 32 bits of the value.
struct Scalar {
  std::string tag;
  double value = 0;
};

// The messages of an event file (tensorflow/core/util/event.proto), as protobuf encodes them.
// wall_time: seconds since 1970.
std::string encode_version(double wall_time);
std::string encode_scalars(double wall_time, std::int64_t step, std::span<const Scalar> scalars);

struct Event {
  std::int64_t step = 0;
  std::vector<std::string> tags;  // Of its scalars; none in that of encode_version().
};
// kProtocol if these bytes are no event.
Result<Event> decode_event(std::string_view bytes);

}  // namespace ddp::tensorboard
