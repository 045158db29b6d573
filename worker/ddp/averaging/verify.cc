#include "worker/ddp/averaging/verify.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include "worker/ddp/averaging/bucket_route.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

constexpr std::string_view kOption = "option ";

// The numbers of devices may differ between ranks. What lies together on one may not.
std::string place_of(const at::Tensor& tensor, std::vector<c10::Device>& devices) {
  const c10::Device device = tensor.device();
  if (device.is_cpu()) return {};
  return fmt::format(" on {} device number {} of the module",
                     c10::DeviceTypeName(device.type(), /*lower_case=*/true),
                     device_number(device, devices));
}

std::string line_of(std::string_view kind, const NamedTensor& item,
                    std::vector<c10::Device>& devices) {
  std::string line = fmt::format("{} {} {}{}", kind, item.name, describe(item.tensor),
                                 place_of(item.tensor, devices));
  if (kind == "parameter" && !item.tensor.requires_grad()) line += " without gradient";
  if (!item.shared_as.empty()) {
    line += fmt::format(" shared as {}", fmt::join(item.shared_as, ", "));
  }
  return line;
}

// One line for each tensor and each setting.
std::string description(const ModuleState& state, const std::vector<std::string>& settings) {
  std::string text;
  std::vector<c10::Device> devices;
  for (const NamedTensor& item : state.parameters) {
    text += line_of("parameter", item, devices) + '\n';
  }
  for (const NamedTensor& item : state.buffers) text += line_of("buffer", item, devices) + '\n';
  for (const std::string& setting : settings) text += fmt::format("{}{}\n", kOption, setting);
  return text;
}

using Digest = std::array<std::int64_t, 3>;

Digest digest_of(const std::string& text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {static_cast<std::int64_t>(hash.low64), static_cast<std::int64_t>(hash.high64),
          static_cast<std::int64_t>(text.size())};
}

std::string_view take_line(std::string_view& text) {
  if (text.empty()) return "nothing more";
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

bool is_option(std::string_view line) { return line.substr(0, kOption.size()) == kOption; }

[[noreturn]] void throw_first_difference(std::string_view of_zero, std::string_view of_other,
                                         Rank other) {
  for (std::size_t index = 0;; ++index) {
    std::string_view a = take_line(of_zero);
    std::string_view b = take_line(of_other);
    if (a == b) continue;
    // One model ends before the other, so its options come first.
    if (is_option(a) != is_option(b)) (is_option(a) ? a : b) = "nothing more";
    throw std::invalid_argument(fmt::format(
        "the model differs between ranks, first at line {}: rank 0 has '{}', rank {} has '{}'; "
        "build the same module with the same options on every rank",
        index, a, other, b));
  }
}

}  // namespace

void verify_same_model(const ModuleState& state, ProcessGroup& group,
                       const std::vector<std::string>& settings) {
  if (group.size() == 1) return;
  const auto size = static_cast<std::size_t>(group.size());
  std::string mine = description(state, settings);
  Digest digest = digest_of(mine);
  std::vector<Digest> digests(size);
  const OpOptions options{{}, "model verification"};
  group
      .all_gather({digest.data(), digest.size(), DType::kI64},
                  {digests.data(), digest.size() * size, DType::kI64}, options)
      ->wait();
  const auto other = std::find_if(digests.begin(), digests.end(),
                                  [&](const Digest& theirs) { return theirs != digests[0]; });
  if (other == digests.end()) return;

  // The descriptions travel only now; every rank knows that they do, since all have seen the same
  // digests.
  std::size_t longest = 0;
  for (const Digest& theirs : digests)
    longest = std::max(longest, static_cast<std::size_t>(theirs[2]));
  mine.resize(longest, '\n');
  std::string all(longest * size, '\0');
  group
      .all_gather({mine.data(), longest, DType::kU8}, {all.data(), all.size(), DType::kU8}, options)
      ->wait();
  const auto text_of = [&](std::size_t rank) {
    return std::string_view(all).substr(rank * longest, static_cast<std::size_t>(digests[rank][2]));
  };
  const auto rank = static_cast<std::size_t>(other - digests.begin());
  throw_first_difference(text_of(0), text_of(rank), static_cast<Rank>(rank));
}

}  // namespace ddp
