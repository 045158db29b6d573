#include "worker/tensorboard/event.h"

#include <protozero/pbf_builder.hpp>
#include <protozero/pbf_message.hpp>

#include "common/base/errc.h"

namespace ddp::tensorboard {
namespace {

// Field numbers of tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto.
enum class EventField : protozero::pbf_tag_type {
  kWallTime = 1,
  kStep = 2,
  kFileVersion = 3,
  kSummary = 5,
};
enum class SummaryField : protozero::pbf_tag_type { kValue = 1 };
enum class ValueField : protozero::pbf_tag_type { kTag = 1, kSimpleValue = 2 };

void add_tags(protozero::pbf_message<SummaryField> summary, std::vector<std::string>& tags) {
  while (summary.next(SummaryField::kValue)) {
    protozero::pbf_message<ValueField> value = summary.get_message();
    while (value.next(ValueField::kTag)) tags.push_back(value.get_string());
  }
}

}  // namespace

std::string encode_version(double wall_time) {
  std::string bytes;
  protozero::pbf_builder<EventField> event(bytes);
  event.add_double(EventField::kWallTime, wall_time);
  event.add_string(EventField::kFileVersion, "brain.Event:2");
  return bytes;
}

std::string encode_scalars(double wall_time, std::int64_t step, std::span<const Scalar> scalars) {
  std::string bytes;
  protozero::pbf_builder<EventField> event(bytes);
  event.add_double(EventField::kWallTime, wall_time);
  event.add_int64(EventField::kStep, step);
  protozero::pbf_builder<SummaryField> summary(event, EventField::kSummary);
  for (const Scalar& scalar : scalars) {
    protozero::pbf_builder<ValueField> value(summary, SummaryField::kValue);
    value.add_string(ValueField::kTag, scalar.tag);
    value.add_float(ValueField::kSimpleValue, static_cast<float>(scalar.value));
  }
  return bytes;
}

Result<Event> decode_event(std::string_view bytes) {
  try {
    Event event;
    protozero::pbf_message<EventField> message(bytes.data(), bytes.size());
    while (message.next()) {
      if (message.tag() == EventField::kStep)
        event.step = message.get_int64();
      else if (message.tag() == EventField::kSummary)
        add_tags(message.get_message(), event.tags);
      else
        message.skip();
    }
    return event;
  } catch (const protozero::exception& error) {
    return make_error(Errc::kProtocol, "{}", error.what());
  }
}

}  // namespace ddp::tensorboard
