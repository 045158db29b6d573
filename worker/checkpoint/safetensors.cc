#include "worker/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>

#include <nlohmann/json.hpp>

#include "worker/checkpoint/checksum.h"

namespace ddp::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are written as they lie");

using nlohmann::json;

// The length prefix and the padded JSON, or why these tensors cannot be one file. The tensors are
// sorted already.
Result<std::string> header_bytes(const std::vector<TensorView>& tensors,
                                 const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const TensorView& tensor : tensors) {
    if (tensor.name == "__metadata__" || header.contains(tensor.name)) {
      return make_error(Errc::kInvalidArgument, "the tensor name \"{}\" is {}", tensor.name,
                        tensor.name == "__metadata__" ? "reserved" : "used twice");
    }
    if (tensor_bytes(tensor.type, tensor.shape) != tensor.bytes.size() ||
        tensor.shape.size() > kMaxTensorDimensions) {
      return make_error(Errc::kInvalidArgument, "the shape of tensor \"{}\" does not fit {} bytes",
                        tensor.name, tensor.bytes.size());
    }
    const std::uint64_t end = offset + tensor.bytes.size();
    header[tensor.name] = {{"dtype", tensor_type_name(tensor.type)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception& error) {
    return make_error(Errc::kInvalidArgument, "a tensor name is not UTF-8: {}", error.what());
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kMaxSafetensorsHeader) {
    return make_error(Errc::kInvalidArgument,
                      "{} tensors need a header of {} bytes, {} is the most", tensors.size(),
                      text.size(), kMaxSafetensorsHeader);
  }
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<char>(static_cast<std::uint64_t>(text.size()) >> (8 * i));
  }
  return bytes + text;
}

}  // namespace

Result<WrittenShard> write_safetensors(FileSystem& files, const std::string& path,
                                       std::vector<TensorView> tensors,
                                       const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorView& a, const TensorView& b) {
    const std::size_t a_bytes = tensor_type_bytes(a.type);
    const std::size_t b_bytes = tensor_type_bytes(b.type);
    return a_bytes != b_bytes ? a_bytes > b_bytes : a.name < b.name;
  });
  auto header = header_bytes(tensors, metadata);
  if (!header) return header.error();

  auto file = files.create_file(path);
  if (!file) return file.error();
  WrittenShard shard;
  Checksum of_file;
  if (auto written = (*file)->append(*header); !written) return written.error();
  of_file.update(std::as_bytes(std::span(header->data(), header->size())));
  shard.bytes = header->size();
  for (const TensorView& tensor : tensors) {
    if (auto written = (*file)->append(tensor.bytes); !written) return written.error();
    of_file.update(tensor.bytes);
    shard.bytes += tensor.bytes.size();
    shard.tensors.push_back({tensor.name, checksum_of(tensor.bytes)});
  }
  if (auto synced = (*file)->sync(); !synced) return synced.error();
  if (auto closed = (*file)->close(); !closed) return closed.error();
  shard.checksum = of_file.hex();
  return shard;
}

}  // namespace ddp::checkpoint
