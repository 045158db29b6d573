#include "worker/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <future>
#include <utility>

#include <nlohmann/json.hpp>

#include "worker/checkpoint/checksum.h"

namespace ddp::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little,
              "tensors are written as they are in memory");

using nlohmann::json;

// Small enough to be hashed twice while it is in the cache.
constexpr std::size_t kHashPiece = std::size_t{1} << 20;

std::uint64_t size_of(const TensorView& tensor) { return tensor.bytes.size(); }
std::uint64_t size_of(const TensorEntry& tensor) { return tensor.end - tensor.begin; }

// The length prefix and the padded JSON, or why these tensors cannot be in one file. The tensors
// are already in the order of their bytes.
template <typename Tensor>
Result<std::string> header_bytes(const std::vector<Tensor>& tensors,
                                 const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.name == "__metadata__" || header.contains(tensor.name)) {
      return make_error(Errc::kInvalidArgument, "the tensor name \"{}\" is {}", tensor.name,
                        tensor.name == "__metadata__" ? "reserved" : "used twice");
    }
    if (tensor_bytes(tensor.type, tensor.shape) != size_of(tensor) ||
        tensor.shape.size() > kMaxTensorDimensions) {
      return make_error(Errc::kInvalidArgument, "the shape of tensor \"{}\" does not fit {} bytes",
                        tensor.name, size_of(tensor));
    }
    const std::uint64_t end = offset + size_of(tensor);
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
  const std::size_t multiple = offset < kAlignedDataBytes ? kLengthBytes : kDataAlignment;
  text.append((multiple - (kLengthBytes + text.size()) % multiple) % multiple, ' ');
  if (text.size() > kMaxSafetensorsHeader) {
    return make_error(Errc::kInvalidArgument,
                      "{} tensors need a header of {} bytes, but at most {} are allowed",
                      tensors.size(), text.size(), kMaxSafetensorsHeader);
  }
  std::string bytes(kLengthBytes, '\0');
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    bytes[i] = static_cast<char>(static_cast<std::uint64_t>(text.size()) >> (8 * i));
  }
  return bytes + text;
}

// Appends pieces to a file and feeds them to the file's checksum while they are in the cache. Data
// that is contiguous in memory is written together, in equal pieces; if the file's data is aligned,
// so are the pieces. A large piece is written to the disk while the next one is added.
class PieceWriter {
 public:
  PieceWriter(WritableFile& file, const WritePace& pace) : file_(file), pace_(pace) {}

  Result<void> add(std::span<const std::byte> bytes) {
    of_file_.update(bytes);
    bytes_ += bytes.size();
    if (pending_.data() + pending_.size() != bytes.data()) {
      if (auto flushed = flush(); !flushed) return flushed;
      pending_ = bytes;
    } else {
      pending_ = {pending_.data(), pending_.size() + bytes.size()};
    }
    while (pending_.size() >= pace_.piece) {
      if (auto written = write(pace_.piece); !written) return written;
    }
    return {};
  }

  Result<void> flush() {
    if (!pending_.empty()) {
      if (auto written = write(pending_.size()); !written) return written;
    }
    return wait();
  }

  std::uint64_t bytes() const { return bytes_; }
  std::string checksum() const { return of_file_.hex(); }

 private:
  // Writes at most pace_.piece of the pending bytes.
  Result<void> write(std::size_t count) {
    if (pace_.before) {
      if (auto allowed = pace_.before(count); !allowed) return allowed;
    }
    if (auto waited = wait(); !waited) return waited;
    const auto piece = pending_.first(count);
    pending_ = pending_.subspan(count);
    if (piece.size() < kAlignedDataBytes) return file_.append(piece);
    writing_ = std::async(std::launch::async, [this, piece] { return file_.append(piece); });
    return {};
  }

  // Waits for the previous piece.
  Result<void> wait() { return writing_.valid() ? writing_.get() : Result<void>(); }

  WritableFile& file_;
  const WritePace& pace_;
  Checksum of_file_;
  std::uint64_t bytes_ = 0;
  std::span<const std::byte> pending_;
  std::future<Result<void>> writing_;  // Its destructor waits.
};

Result<std::string> write_tensor(PieceWriter& writer, std::span<const std::byte> bytes) {
  Checksum of_tensor;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kHashPiece));
    of_tensor.update(piece);
    if (auto added = writer.add(piece); !added) return added.error();
    bytes = bytes.subspan(piece.size());
  }
  return of_tensor.hex();
}

}  // namespace

bool lies_before(TensorType type, std::string_view name, TensorType other_type,
                 std::string_view other_name) {
  const std::size_t bytes = tensor_type_bytes(type);
  const std::size_t other_bytes = tensor_type_bytes(other_type);
  return bytes != other_bytes ? bytes > other_bytes : name < other_name;
}

bool has_own_header(std::span<const std::byte> file, const SafetensorsHeader& header) {
  const auto bytes = header_bytes(header.tensors, {});
  return bytes && bytes->size() <= file.size() &&
         std::ranges::equal(std::as_bytes(std::span(bytes->data(), bytes->size())),
                            file.first(bytes->size()));
}

Result<WrittenShard> write_safetensors(FileSystem& files, const std::string& path,
                                       std::vector<TensorView> tensors,
                                       const std::map<std::string, std::string>& metadata,
                                       const WritePace& pace) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorView& a, const TensorView& b) {
    return lies_before(a.type, a.name, b.type, b.name);
  });
  auto header = header_bytes(tensors, metadata);
  if (!header) return header.error();

  auto file = files.create_file(path);
  if (!file) return file.error();
  PieceWriter writer(**file, pace);
  WrittenShard shard;
  auto begun = writer.add(std::as_bytes(std::span(header->data(), header->size())));
  if (!begun) return begun.error();
  for (const TensorView& tensor : tensors) {
    auto checksum = write_tensor(writer, tensor.bytes);
    if (!checksum) return checksum.error();
    shard.tensors.push_back({tensor.name, std::move(*checksum)});
  }
  if (auto flushed = writer.flush(); !flushed) return flushed.error();
  if (auto synced = (*file)->sync(); !synced) return synced.error();
  if (auto closed = (*file)->close(); !closed) return closed.error();
  shard.bytes = writer.bytes();
  shard.checksum = writer.checksum();
  return shard;
}

}  // namespace ddp::checkpoint
