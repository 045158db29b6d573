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

// A tensor's bytes in a file, row-major and little-endian. They stay valid as long as `file`, also
// if the checkpoint is removed.
struct MappedTensor {
  std::span<const std::byte> bytes;
  std::shared_ptr<const MappedFile> file;
};

// Reads the files of one checkpoint as its manifest has them: maps those that are asked for, and
// gives nothing that it has not read from the disk and found to have its checksum. Each byte is
// read and checked once, whichever calls ask for it. One thread at a time.
//
// Failures name the file: kCorrupt for a checksum or a header that is not what the manifest says,
// kIo for what the disk cannot read, kNotFound for a missing file.
class Reader {
 public:
  // `files` and `manifest` outlive the object. `folder` is that of the checkpoint.
  Reader(FileSystem& files, std::string folder, const Manifest& manifest);

  // `record` is one of the manifest's. Reads its tensor only.
  Result<MappedTensor> tensor(const TensorRecord& record);

  // Every byte of a file against its checksum, its header against the manifest, and every tensor in
  // it against its own checksum, in one pass.
  Result<void> verify(const FileRecord& record);

  // The same proof, cheaper: of a file whose header is as this program writes it, the tensors'
  // checksums cover every byte, so that of the file adds nothing. A large one is read by up to
  // `threads` threads.
  Result<void> verify_tensors(const FileRecord& record, int threads);

  // Called by the thread that is in tensor(), verify() or verify_tensors(), with the number of
  // bytes checked since the last call, about every 4 MiB.
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
