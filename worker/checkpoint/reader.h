#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/safetensors.h"

namespace ddp::checkpoint {

// A tensor's bytes in a file, row-major and little-endian. They stay valid as long as `file`, even
// if the checkpoint is removed.
struct MappedTensor {
  std::span<const std::byte> bytes;
  std::shared_ptr<const MappedFile> file;
};

// Reads the files of one checkpoint as its manifest lists them. Maps the requested ones, and
// returns nothing before it has read it from the disk and verified its checksum. Each byte is read
// and checked once, however many calls ask for it. One thread at a time.
//
// Failures name the file: kCorrupt for a checksum or a header that disagrees with the manifest, kIo
// for data that the disk cannot read, kNotFound for a missing file.
class Reader {
 public:
  // `files` and `manifest` must outlive the object. `folder` is the checkpoint's folder.
  Reader(FileSystem& files, std::string folder, const Manifest& manifest);

  // `record` belongs to the manifest. Reads only its tensor.
  Result<MappedTensor> tensor(const TensorRecord& record);

  // Checks every byte of a file against its checksum, its header against the manifest, and every
  // tensor in it against its own checksum, in one pass.
  Result<void> verify(const FileRecord& record);

  // Proves the same at a lower cost: if a file's header is exactly as this program writes it, the
  // tensors' checksums cover every byte, so the file's checksum is not needed. Up to `threads`
  // threads read a large file.
  Result<void> verify_tensors(const FileRecord& record, int threads);

  // Sets a function that the thread in tensor(), verify() or verify_tensors() calls about every 4
  // MiB, with the number of bytes checked since the last call.
  void on_progress(std::function<void(std::uint64_t)> call) { progress_ = std::move(call); }

 private:
  struct Shard {
    std::shared_ptr<const MappedFile> file;
    SafetensorsHeader header;
    std::map<std::string_view, const TensorEntry*> entries;  // Point into header.
    std::set<std::string_view> checked;                      // Names of tensors.
    bool is_whole_checked = false;
  };

  Result<Shard*> open(const std::string& name);
  Result<void> match(const std::string& name, const Shard& shard) const;
  class Tensors;
  std::map<std::string_view, const TensorRecord*> records_of(const std::string& file) const;
  Result<void> check_tensor(const std::string& name, const TensorRecord& record,
                            const std::string& actual) const;

  FileSystem& files_;
  std::string folder_;
  std::map<std::string_view, std::vector<const TensorRecord*>> records_;  // By file.
  std::map<std::string, Shard, std::less<>> shards_;
  std::function<void(std::uint64_t)> progress_;
};

}  // namespace ddp::checkpoint
