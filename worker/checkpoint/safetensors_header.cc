#include <algorithm>

#include "worker/checkpoint/json_values.h"
#include "worker/checkpoint/safetensors.h"

namespace ddp::checkpoint {
namespace {

using nlohmann::json;

template <typename... Args>
Error malformed(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(Errc::kCorrupt, format, std::forward<Args>(args)...);
}

bool is_size(const json& value) {
  return value.is_number_unsigned() && value.get<std::uint64_t>() <= INT64_MAX;
}

Result<TensorEntry> parse_entry(const std::string& name, const json& value) {
  if (!value.is_object()) return malformed("tensor \"{}\" is not an object", name);
  for (const auto& [key, member] : value.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      return malformed("tensor \"{}\" has the unknown key \"{}\"", name, key);
    }
  }
  if (value.size() != 3) {
    return malformed("tensor \"{}\" lacks one of dtype, shape and data_offsets", name);
  }
  TensorEntry entry{.name = name, .type = TensorType::kU8, .shape = {}, .begin = 0, .end = 0};

  const json& dtype = value["dtype"];
  if (!dtype.is_string()) return malformed("dtype of tensor \"{}\" is not a string", name);
  const auto type = tensor_type_from_name(dtype.get_ref<const std::string&>());
  if (!type) {
    return malformed("dtype \"{}\" of tensor \"{}\" is unknown", dtype.get<std::string>(), name);
  }
  entry.type = *type;

  const json& shape = value["shape"];
  if (!shape.is_array() || shape.size() > kMaxTensorDimensions) {
    return malformed("shape of tensor \"{}\" is not an array of at most {} sizes", name,
                     kMaxTensorDimensions);
  }
  for (const json& dimension : shape) {
    if (!is_size(dimension)) {
      return malformed("shape of tensor \"{}\" has {}, which is not a size", name,
                       dimension.dump());
    }
    entry.shape.push_back(dimension.get<std::int64_t>());
  }

  const json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !is_size(offsets[0]) || !is_size(offsets[1])) {
    return malformed("data_offsets of tensor \"{}\" are not two positions", name);
  }
  entry.begin = offsets[0].get<std::uint64_t>();
  entry.end = offsets[1].get<std::uint64_t>();
  const auto bytes = tensor_bytes(entry.type, entry.shape);
  if (!bytes) return malformed("shape of tensor \"{}\" is too large", name);
  if (entry.begin > entry.end || entry.end - entry.begin != *bytes) {
    return malformed("tensor \"{}\" lies at [{}, {}), but {} with its shape has {} bytes", name,
                     entry.begin, entry.end, tensor_type_name(entry.type), *bytes);
  }
  return entry;
}

Result<std::map<std::string, std::string>> parse_metadata(const json& value) {
  if (!value.is_object()) return malformed("__metadata__ is not an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, member] : value.items()) {
    if (!member.is_string()) return malformed("\"{}\" in __metadata__ is not a string", key);
    metadata[key] = member.get<std::string>();
  }
  return metadata;
}

// Sorts by position and checks that the tensors cover [0, data_bytes) exactly.
Result<void> check_coverage(std::vector<TensorEntry>& tensors, std::uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t covered = 0;
  for (const TensorEntry& entry : tensors) {
    if (entry.begin != covered) {
      return malformed("tensor \"{}\" begins at byte {} of the data, but {} is expected: {}",
                       entry.name, entry.begin, covered,
                       entry.begin < covered ? "an overlap" : "a hole");
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    return malformed("the tensors end at byte {} of the data, which has {} bytes", covered,
                     data_bytes);
  }
  return {};
}

// The length of the header of a file that has `size` bytes and begins with `prefix`.
Result<std::size_t> header_length(std::span<const std::byte> prefix, std::uint64_t size,
                                  const std::string& path) {
  if (size < kLengthBytes) {
    return malformed("{} has {} bytes, but the length of the header alone needs 8", path, size);
  }
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) {
    length = length << 8 | std::to_integer<std::uint64_t>(prefix[i]);
  }
  if (length > kMaxSafetensorsHeader) {
    return malformed("{} announces a header of {} bytes, but at most {} are allowed", path, length,
                     kMaxSafetensorsHeader);
  }
  if (length > size - kLengthBytes) {
    return malformed("{} announces a header of {} bytes, but has only {} more", path, length,
                     size - kLengthBytes);
  }
  return static_cast<std::size_t>(length);
}

Result<SafetensorsHeader> parse_named(std::string_view text, std::uint64_t file_bytes,
                                      const std::string& path) {
  auto header = parse_safetensors_header(text, kLengthBytes + text.size(), file_bytes);
  if (!header) return malformed("{}: {}", path, header.error().message);
  return header;
}

}  // namespace

const TensorEntry* SafetensorsHeader::find(std::string_view name) const {
  for (const TensorEntry& entry : tensors) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view text, std::uint64_t data_start,
                                                   std::uint64_t file_bytes) {
  DDP_CHECK(data_start <= file_bytes, "{} of {}", data_start, file_bytes);
  // Only spaces may follow the object, and nothing may precede it.
  const std::size_t last = text.find_last_not_of(' ');
  if (text.empty() || text.front() != '{' || text[last] != '}') {
    return malformed("the header is not a JSON object padded with spaces");
  }
  auto parsed = parse_strict(text.substr(0, last + 1), 3);
  if (!parsed) return malformed("header: {}", parsed.error().message);

  SafetensorsHeader header;
  for (const auto& [name, value] : parsed->items()) {
    if (name == "__metadata__") {
      auto metadata = parse_metadata(value);
      if (!metadata) return metadata.error();
      header.metadata = std::move(*metadata);
      continue;
    }
    auto entry = parse_entry(name, value);
    if (!entry) return entry.error();
    header.tensors.push_back(std::move(*entry));
  }
  if (auto covered = check_coverage(header.tensors, file_bytes - data_start); !covered) {
    return covered.error();
  }
  for (TensorEntry& entry : header.tensors) {
    entry.begin += data_start;
    entry.end += data_start;
  }
  return header;
}

Result<SafetensorsHeader> read_safetensors_header(const ReadableFile& file,
                                                  const std::string& path) {
  std::byte prefix[kLengthBytes] = {};
  if (file.size() >= kLengthBytes) {
    if (auto read = file.read_at(0, prefix); !read) return read.error();
  }
  auto length = header_length(prefix, file.size(), path);
  if (!length) return length.error();
  std::string text(*length, '\0');
  auto read =
      file.read_at(kLengthBytes, std::as_writable_bytes(std::span(text.data(), text.size())));
  if (!read) return read.error();
  return parse_named(text, file.size(), path);
}

Result<SafetensorsHeader> read_safetensors_header(const MappedFile& file, const std::string& path) {
  const std::span<const std::byte> bytes = file.bytes();
  if (auto read = file.fetch(0, std::min(bytes.size(), kLengthBytes)); !read) return read.error();
  auto length = header_length(bytes, bytes.size(), path);
  if (!length) return length.error();
  if (auto read = file.fetch(kLengthBytes, *length); !read) return read.error();
  const auto text = bytes.subspan(kLengthBytes, *length);
  return parse_named({reinterpret_cast<const char*>(text.data()), text.size()}, bytes.size(), path);
}

}  // namespace ddp::checkpoint
