#include "worker/checkpoint/manifest.h"

#include <map>
#include <set>

#include "worker/checkpoint/checksum.h"
#include "worker/checkpoint/json_values.h"

namespace ddp::checkpoint {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "ddp-checkpoint";
// The text ends with these two around the checksum of everything before them.
constexpr std::string_view kTailBegin = "\"checksum\":\"";
constexpr std::string_view kTailEnd = "\"\n}\n";
constexpr std::size_t kChecksumDigits = 32;

template <typename... Args>
Error corrupt(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(Errc::kCorrupt, format, std::forward<Args>(args)...);
}

bool is_checksum(std::string_view text) {
  return text.size() == kChecksumDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name != kManifestName &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

// The text without its tail, if the checksum in the tail is right.
Result<std::string_view> checked_body(std::string_view text) {
  const std::size_t tail = kTailBegin.size() + kChecksumDigits + kTailEnd.size();
  if (text.size() < tail) return corrupt("it is cut off after {} bytes", text.size());
  const std::string_view body = text.substr(0, text.size() - tail);
  const std::string_view end = text.substr(body.size());
  const std::string_view stored = end.substr(kTailBegin.size(), kChecksumDigits);
  if (!end.starts_with(kTailBegin) || !end.ends_with(kTailEnd) || !is_checksum(stored)) {
    return corrupt("it does not end with its checksum");
  }
  if (const std::string actual = checksum_of(body); actual != stored) {
    return corrupt("its checksum is {}, but {} is recorded", actual, stored);
  }
  return body;
}

Result<std::vector<FileRecord>> parse_files(const json& list) {
  std::vector<FileRecord> files;
  std::set<std::string> names;
  for (const json& item : list) {
    FileRecord file{.name = item.at("name").get<std::string>(),
                    .bytes = integer<std::uint64_t>(item.at("bytes")),
                    .checksum = item.at("xxh3_128").get<std::string>()};
    if (!is_plain_name(file.name)) return corrupt("\"{}\" is not a file name", file.name);
    if (!names.insert(file.name).second) return corrupt("the file {} is listed twice", file.name);
    if (!is_checksum(file.checksum)) return corrupt("the checksum of {} is malformed", file.name);
    files.push_back(std::move(file));
  }
  return files;
}

Result<std::vector<TensorRecord>> parse_tensors(const json& list, const Manifest& manifest) {
  std::vector<TensorRecord> tensors;
  std::set<std::pair<Rank, std::string>> names;
  std::set<std::pair<std::string, std::string>> in_files;
  std::set<std::string, std::less<>> files;
  for (const FileRecord& file : manifest.files) files.insert(file.name);
  for (const json& item : list) {
    TensorRecord tensor;
    tensor.name = item.at("name").get<std::string>();
    tensor.file = item.at("file").get<std::string>();
    tensor.shape = integers(item.at("shape"));
    tensor.checksum = item.at("xxh3_128").get<std::string>();
    if (item.contains("rank")) {
      tensor.rank = integer<Rank>(item.at("rank"));
      if (tensor.rank < 0 || tensor.rank >= manifest.world_size) {
        return corrupt("tensor \"{}\" belongs to rank {} of {}", tensor.name, tensor.rank,
                       manifest.world_size);
      }
    }
    const auto type = tensor_type_from_name(item.at("dtype").get_ref<const std::string&>());
    if (!type || !tensor_bytes(*type, tensor.shape) || !is_checksum(tensor.checksum)) {
      return corrupt("type, shape or checksum of tensor \"{}\" is malformed", tensor.name);
    }
    tensor.type = *type;
    if (!files.contains(tensor.file)) {
      return corrupt("tensor \"{}\" lies in {}, which is not listed", tensor.name, tensor.file);
    }
    if (!names.insert({tensor.rank, tensor.name}).second ||
        !in_files.insert({tensor.file, tensor.name}).second) {
      return corrupt("tensor \"{}\" is listed twice", tensor.name);
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// Parses everything but the checksum. Throws json::exception if a member is missing or has another
// type.
Result<Manifest> parse_members(const json& root) {
  if (root.at("format") != kFormat) return corrupt("its format is not {}", kFormat);
  if (const auto version = integer<std::int64_t>(root.at("version")); version != kFormatVersion) {
    return make_error(Errc::kMismatch,
                      "its format version is {}, but this program reads version {}", version,
                      kFormatVersion);
  }
  Manifest manifest;
  manifest.step = integer<std::int64_t>(root.at("step"));
  manifest.epoch = integer<std::int64_t>(root.at("epoch"));
  manifest.round = integer<Round>(root.at("round"));
  manifest.world_size = integer<int>(root.at("world_size"));
  manifest.save_id = root.value("save", std::string());
  manifest.seconds = root.value("seconds", -1.0);
  if (manifest.step < 0 || manifest.world_size < 1) {
    return corrupt("step {} and world size {} are not possible", manifest.step,
                   manifest.world_size);
  }
  auto state = decode_values(root.at("state"));
  if (!state) return state.error();
  manifest.state = std::move(*state);
  auto rank_state = decode_values(root.at("rank_state"));
  if (!rank_state) return rank_state.error();
  manifest.rank_state = rank_state->get<std::vector<json>>();
  if (!manifest.state.is_object() ||
      manifest.rank_state.size() != static_cast<std::size_t>(manifest.world_size)) {
    return corrupt("state is not an object, or rank_state has {} entries for a world size of {}",
                   manifest.rank_state.size(), manifest.world_size);
  }
  for (const json& values : manifest.rank_state) {
    if (!values.is_object()) return corrupt("an entry of rank_state is not an object");
  }
  auto files = parse_files(root.at("files"));
  if (!files) return files.error();
  manifest.files = std::move(*files);
  auto tensors = parse_tensors(root.at("tensors"), manifest);
  if (!tensors) return tensors.error();
  manifest.tensors = std::move(*tensors);
  return manifest;
}

json to_json(const FileRecord& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"xxh3_128", file.checksum}};
}

json to_json(const TensorRecord& tensor) {
  json item = {{"name", tensor.name},
               {"file", tensor.file},
               {"dtype", tensor_type_name(tensor.type)},
               {"shape", tensor.shape},
               {"xxh3_128", tensor.checksum}};
  if (tensor.rank != kReplicated) item["rank"] = tensor.rank;
  return item;
}

// One element per line, so that two manifests can be compared line by line.
template <typename Record>
std::string lines_of(const std::vector<Record>& records) {
  std::string text = "[";
  for (const Record& record : records) {
    text += text.size() == 1 ? "\n" : ",\n";
    text += to_json(record).dump();
  }
  return text + "\n]";
}

}  // namespace

const FileRecord* Manifest::find_file(std::string_view name) const {
  for (const FileRecord& file : files) {
    if (file.name == name) return &file;
  }
  return nullptr;
}

Result<std::string> manifest_to_text(const Manifest& manifest) {
  auto state = encode_values(manifest.state);
  if (!state) return state.error();
  auto rank_state = encode_values(json(manifest.rank_state));
  if (!rank_state) return rank_state.error();
  std::string text;
  try {
    text = fmt::format(
        "{{\n\"format\":\"{}\",\n\"version\":{},\n\"step\":{},\n\"epoch\":{},\n\"world_size\":{},\n"
        "\"round\":{},\n{}{}\"state\":{},\n\"rank_state\":{},\n\"files\":{},\n\"tensors\":{},\n",
        kFormat, kFormatVersion, manifest.step, manifest.epoch, manifest.world_size, manifest.round,
        manifest.save_id.empty() ? ""
                                 : fmt::format("\"save\":{},\n", json(manifest.save_id).dump()),
        manifest.seconds < 0 ? "" : fmt::format("\"seconds\":{},\n", json(manifest.seconds).dump()),
        state->dump(), rank_state->dump(), lines_of(manifest.files), lines_of(manifest.tensors));
  } catch (const json::exception& error) {
    return make_error(Errc::kInvalidArgument, "a name is not UTF-8: {}", error.what());
  }
  const std::string checksum = checksum_of(text);
  text.append(kTailBegin).append(checksum).append(kTailEnd);
  if (text.size() > kMaxManifestBytes) {
    return make_error(Errc::kInvalidArgument,
                      "the manifest has {} bytes, but at most {} are allowed", text.size(),
                      kMaxManifestBytes);
  }
  // A manifest that cannot be read back must be an error now, not when it is needed.
  if (auto back = parse_manifest(text); !back) {
    return make_error(Errc::kInvalidArgument, "the manifest would be unreadable: {}",
                      back.error().message);
  }
  return text;
}

Result<Manifest> parse_manifest(std::string_view text) {
  auto body = checked_body(text);
  if (!body) return body.error();
  auto root = parse_strict(text, kMaxManifestDepth);
  if (!root) return root.error();
  try {
    return parse_members(*root);
  } catch (const json::exception& error) {
    return corrupt("a member is missing or has the wrong type: {}", error.what());
  }
}

}  // namespace ddp::checkpoint
