#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/tensor_type.h"

namespace ddp::checkpoint {

// The safetensors file format: 8 bytes little-endian header length, a JSON header, the tensors'
// bytes without holes.

inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;  // The format's own limit.
inline constexpr std::size_t kMaxTensorDimensions = 64;

// A tensor to be written. Row-major, little-endian; the bytes belong to the caller.
struct TensorView {
  std::string name;
  TensorType type = TensorType::kU8;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

// A tensor in a file.
struct TensorEntry {
  std::string name;
  TensorType type = TensorType::kU8;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // From the start of the file; end is exclusive.
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // In the order of their bytes.
  std::map<std::string, std::string> metadata;

  const TensorEntry* find(std::string_view name) const;
};

// Whether the first tensor comes before the second in files written here: by the element's size,
// largest first, so that every tensor is aligned to its elements, then by name.
bool lies_before(TensorType type, std::string_view name, TensorType other_type,
                 std::string_view other_name);

// What was written, for the manifest.
struct WrittenShard {
  std::uint64_t bytes = 0;
  std::string checksum;  // Of the whole file.
  struct Tensor {
    std::string name;
    std::string checksum;  // Of the tensor's bytes.
  };
  std::vector<Tensor> tensors;
};

inline constexpr std::size_t kLengthBytes = 8;  // Of the header length at the beginning of a file.
inline constexpr std::size_t kWritePiece = std::size_t{8} << 20;
// In a file with at least kAlignedDataBytes of tensors, these begin at a multiple of
// kDataAlignment, so that their bytes can go from memory to the disk without a copy by the system
// (O_DIRECT).
inline constexpr std::size_t kDataAlignment = 4096;
inline constexpr std::size_t kAlignedDataBytes = std::size_t{1} << 20;

// For a writer that limits its rate or may be cancelled.
struct WritePace {
  std::size_t piece = kWritePiece;  // Most bytes between two calls; 1 to kWritePiece.
  // Called before each piece. It may wait; an error ends the writing. May be empty.
  std::function<Result<void>(std::size_t bytes)> before;
};

// Creates the file and makes its contents durable (not its name; sync_directory does that). Tensors
// are in the order of lies_before; those that are contiguous in memory are written together. The
// header is padded with spaces so that the data starts at a multiple of 8, or of kDataAlignment if
// there are at least kAlignedDataBytes of it. kInvalidArgument for a name that appears twice, is
// "__metadata__" or not UTF-8, a shape that does not fit the bytes, or a header over the limit;
// then nothing is created. After kIo or the pace's error the file may exist, but is unusable.
Result<WrittenShard> write_safetensors(FileSystem& files, const std::string& path,
                                       std::vector<TensorView> tensors,
                                       const std::map<std::string, std::string>& metadata = {},
                                       const WritePace& pace = {});

// Whether a file begins with exactly the bytes that write_safetensors() would write for these
// tensors in this order, without metadata. Then the header says nothing beyond `header`.
bool has_own_header(std::span<const std::byte> file, const SafetensorsHeader& header);

// Reads and checks the header. kCorrupt, with the path and the reason, unless the file is
// well-formed to the last byte: limits, types, shapes, sizes, no holes, no overlap, no duplicate
// names, nothing after the last tensor.
Result<SafetensorsHeader> read_safetensors_header(const ReadableFile& file,
                                                  const std::string& path);
Result<SafetensorsHeader> read_safetensors_header(const MappedFile& file, const std::string& path);

// The same for a header in memory. `data_start` is the position of the first tensor's bytes.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, std::uint64_t data_start,
                                                   std::uint64_t file_bytes);

}  // namespace ddp::checkpoint
