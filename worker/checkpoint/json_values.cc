#include "worker/checkpoint/json_values.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <vector>

namespace ddp::checkpoint {
namespace {

using nlohmann::json;

constexpr std::string_view kFloatKey = "$float";

// Follows the parser and refuses what the parser itself accepts.
class StrictWatcher {
 public:
  explicit StrictWatcher(std::size_t max_depth) : max_depth_(max_depth) {}

  bool operator()(int, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (keys_.size() == max_depth_) {
          throw std::length_error(fmt::format("it is more than {} levels deep", max_depth_));
        }
        keys_.emplace_back();
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        keys_.pop_back();
        break;
      case json::parse_event_t::key:
        if (!keys_.back().insert(parsed.get<std::string>()).second) {
          throw std::invalid_argument(
              fmt::format("the key \"{}\" appears twice", parsed.get<std::string>()));
        }
        break;
      case json::parse_event_t::value:
        break;
    }
    return true;
  }

 private:
  std::size_t max_depth_;
  std::vector<std::set<std::string>> keys_;
};

// A value that JSON text cannot represent. Thrown inside this file only.
struct NotStorable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

json encode(const json& value, const std::string& place) {
  switch (value.type()) {
    case json::value_t::number_float: {
      const auto number = value.get<double>();
      if (std::isfinite(number)) return value;
      return json{{kFloatKey, fmt::format("{:016x}", std::bit_cast<std::uint64_t>(number))}};
    }
    case json::value_t::object: {
      if (value.size() == 1 && value.begin().key() == kFloatKey) {
        throw NotStorable(place + ": the key \"$float\" is reserved for numbers that JSON lacks");
      }
      json out = json::object();
      for (const auto& [key, member] : value.items()) {
        out[key] = encode(member, place + "/" + key);
      }
      return out;
    }
    case json::value_t::array: {
      json out = json::array();
      for (std::size_t i = 0; i < value.size(); ++i) {
        out.push_back(encode(value[i], fmt::format("{}/{}", place, i)));
      }
      return out;
    }
    case json::value_t::binary:
    case json::value_t::discarded:
      throw NotStorable(place + ": binary values cannot be stored; use a string or a tensor");
    default:
      return value;
  }
}

json decode(const json& value) {
  if (value.is_array()) {
    json out = json::array();
    for (const json& element : value) out.push_back(decode(element));
    return out;
  }
  if (!value.is_object()) return value;
  if (value.size() == 1 && value.begin().key() == kFloatKey) {
    const json& bits = value.begin().value();
    const std::string text = bits.is_string() ? bits.get<std::string>() : "";
    std::uint64_t number = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
    if (text.size() != 16 || code != std::errc() || end != text.data() + text.size()) {
      throw NotStorable("a \"$float\" is not 16 hexadecimal digits");
    }
    return std::bit_cast<double>(number);
  }
  json out = json::object();
  for (const auto& [key, member] : value.items()) out[key] = decode(member);
  return out;
}

}  // namespace

Result<json> parse_strict(std::string_view text, std::size_t max_depth) {
  try {
    return json::parse(text, StrictWatcher(max_depth));
  } catch (const json::exception& error) {
    return make_error(Errc::kCorrupt, "not JSON: {}", error.what());
  } catch (const std::logic_error& error) {
    return make_error(Errc::kCorrupt, "refused JSON: {}", error.what());
  }
}

Result<json> encode_values(const json& value) {
  try {
    json out = encode(value, "");
    (void)out.dump();  // Throws on a string that is not UTF-8.
    return out;
  } catch (const json::exception& error) {
    return make_error(Errc::kInvalidArgument, "{}", error.what());
  } catch (const NotStorable& error) {
    return make_error(Errc::kInvalidArgument, "{}", error.what());
  }
}

Result<json> decode_values(const json& value) {
  try {
    return decode(value);
  } catch (const NotStorable& error) {
    return make_error(Errc::kCorrupt, "{}", error.what());
  }
}

std::int64_t integer_between(const json& number, std::int64_t least, std::int64_t most) {
  const bool fits = number.is_number_unsigned()
                        ? number.get<std::uint64_t>() <=
                              static_cast<std::uint64_t>(std::max<std::int64_t>(most, 0))
                        : number.is_number_integer();
  const std::int64_t value = fits ? number.get<std::int64_t>() : 0;
  if (!fits || value < least || value > most) {
    throw json::other_error::create(
        500, fmt::format("{} is not an integer from {} to {}", number.dump(), least, most),
        &number);
  }
  return value;
}

std::vector<std::int64_t> integers(const json& list) {
  std::vector<std::int64_t> values;
  for (const json& number : list.get_ref<const json::array_t&>()) {
    values.push_back(integer<std::int64_t>(number));
  }
  return values;
}

}  // namespace ddp::checkpoint
