#include "launcher/schedulers/variables.h"

#include "common/base/parse_number.h"

namespace ddp::schedulers {
namespace {

constexpr int kLargest = 999'999;  // As --node-rank.

}  // namespace

std::string text_of(const GetEnvironment& environment, const char* name) {
  const char* value = environment(name);
  return value == nullptr ? std::string() : std::string(value);
}

Result<std::optional<int>> number_of(const GetEnvironment& environment, const char* name,
                                     int lowest) {
  const std::string text = text_of(environment, name);
  if (text.empty()) return std::optional<int>();
  const auto number = parse_whole_number(text, lowest, kLargest);
  if (number) return std::optional<int>(*number);
  return make_error(Errc::kInvalidArgument, "{}={}: not a number from {} to {}", name, text, lowest,
                    kLargest);
}

}  // namespace ddp::schedulers
