#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "worker/checkpoint/tensor_type.h"

namespace ddp::checkpoint {

inline constexpr int kFormatVersion = 1;
inline constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{256} << 20;
inline constexpr std::size_t kMaxManifestDepth =
    64;  // Levels of nested JSON, including users' values.
inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr Rank kReplicated = -1;

struct FileRecord {
  std::string name;  // In the checkpoint's folder.
  std::uint64_t bytes = 0;
  std::string checksum;  // 32 hexadecimal digits of XXH3-128.
};

struct TensorRecord {
  std::string name;         // Also its name in the file.
  Rank rank = kReplicated;  // The rank that owns it.
  std::string file;
  TensorType type = TensorType::kU8;
  std::vector<std::int64_t> shape;
  std::string checksum;
};

// Everything that a checkpoint says about itself. FORMAT.md specifies its form on disk.
struct Manifest {
  std::int64_t step = 0;
  std::int64_t epoch = -1;
  int world_size = 1;
  Round round = 0;
  std::string save_id;  // Of the save that wrote it; unique; may be empty.
  double seconds = -1;  // How long writing took; -1: not known.
  nlohmann::json state = nlohmann::json::object();  // Replicated values.
  std::vector<nlohmann::json> rank_state;           // world_size objects.
  std::vector<FileRecord> files;
  std::vector<TensorRecord> tensors;

  const FileRecord* find_file(std::string_view name) const;
};

// kInvalidArgument if it could not be read back: a value that JSON cannot represent, a limit
// exceeded, a duplicate name.
Result<std::string> manifest_to_text(const Manifest& manifest);

// kCorrupt unless the text is complete, its own checksum is right and its contents are consistent;
// kMismatch for a format version that this program does not know.
Result<Manifest> parse_manifest(std::string_view text);

}  // namespace ddp::checkpoint
