#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/retention.h"
#include "worker/checkpoint/tensor_type.h"

// What one rank has to write in one save, as a block of memory that another process can
// write to the disk: a header of 4096 bytes, the tensors' bytes, then a plan (JSON) that says where
// each tensor goes. The block may be larger than its contents. Sealing it is the last step; nobody
// reads it before that. To make one:
//
//   auto layout = lay_out(plan);                      // Pure: offsets and size.
//   memory: at least layout->bytes
//   unseal_snapshot(memory);                           // It may hold the snapshot before.
//   for each tensor of layout->plan.files: copy it to memory + tensor.offset
//   seal_snapshot(memory, *layout);
//
// There is no state between calls. Any thread, but one at a time per block.
namespace ddp::checkpoint {

// The default of SnapshotPlan::timeout.
inline constexpr std::chrono::milliseconds kSaveTimeout = std::chrono::minutes(10);
inline constexpr std::size_t kSnapshotHeaderBytes = 4096;
// Alignment of the first tensor of each file, as in the file (kDataAlignment).
inline constexpr std::size_t kSnapshotAlignment = 4096;

struct SnapshotTensor {
  std::string name;
  TensorType type = TensorType::kU8;
  std::vector<std::int64_t> shape;
  // Tensors of one file with the same number other than 0 have the same bytes: the snapshot has
  // them once, and they are copied once. In the file each has its own bytes.
  std::uint64_t storage = 0;
  // For the caller: kept by lay_out, but not part of the snapshot.
  std::size_t source = 0;
  std::uint64_t offset = 0;  // In the snapshot, a multiple of the element's size; set by lay_out.

  std::uint64_t bytes() const { return tensor_bytes(type, shape).value_or(0); }
};

// A file of the checkpoint's folder. Without tensors it is not written.
struct SnapshotFile {
  std::string name;
  Rank owner = kReplicated;
  std::vector<SnapshotTensor> tensors;
};

struct SnapshotPlan {
  std::string directory;  // The folder of checkpoints; exists already.
  // A word for this save, the same on all ranks and never used before: 1 to 64 characters of A-Z
  // a-z 0-9 _ -.
  std::string save_id;
  std::string job_id;  // For messages.
  std::int64_t step = 0;
  std::int64_t epoch = -1;
  Round round = 0;
  int world_size = 1;
  Rank rank = 0;  // Rank 0 publishes.
  std::vector<SnapshotFile> files;
  nlohmann::json state = nlohmann::json::object();       // Replicated values; rank 0 only.
  nlohmann::json rank_state = nlohmann::json::object();  // This rank's.
  Retention retention;
  // Checkpoints that a reader has found damaged; retention does not count them. Rank 0 only.
  std::vector<std::string> damaged;
  std::uint64_t bytes_per_second = 0;  // Limit for this rank; 0: as fast as the disk.
  // How long a writer may stand in one system call, and how long the publisher waits for a silent
  // writer while the round lasts.
  std::chrono::milliseconds timeout = kSaveTimeout;

  bool publishes() const { return rank == 0; }
  // What each rank's part and the published manifest share: everything but files and state.
  Manifest common_manifest() const;
};

// "shard-00003.safetensors", "rank-00003.safetensors".
std::string shard_file_name(Rank rank);
std::string rank_file_name(Rank rank);

// A plan whose tensors have their offsets. Each file's tensors are in the file's order and without
// gaps between them, so the file is written from the snapshot in large pieces.
struct SnapshotLayout {
  SnapshotPlan plan;
  std::string plan_text;
  std::uint64_t data_end = kSnapshotHeaderBytes;  // The end of the last tensor.
  std::uint64_t bytes = 0;                        // Of the whole snapshot.
};

// kInvalidArgument, which names the item, for a plan that could not be written or read back:
// duplicate names, invalid shapes, a save id or file name that is not a plain name, a rank outside
// its world.
Result<void> check_plan(const SnapshotPlan& plan);

// kInvalidArgument as check_plan, and for values that JSON cannot represent.
Result<SnapshotLayout> lay_out(SnapshotPlan plan);

// Marks the memory as not containing a snapshot. It has at least kSnapshotHeaderBytes.
void unseal_snapshot(std::span<std::byte> memory);

// Writes header and plan around the tensors, which must be there already. The memory has at least
// layout.bytes.
void seal_snapshot(std::span<std::byte> memory, const SnapshotLayout& layout);

// A plan and where its tensors' bytes are: in such memory, or anywhere else in this process.
struct Snapshot {
  SnapshotPlan plan;
  // For each file, for each of its tensors. Not owned; must outlive this.
  std::vector<std::vector<std::span<const std::byte>>> bytes;
};

// Opens the snapshot in `memory`, which must outlive it and not change meanwhile. kCorrupt, with
// the reason, unless it is sealed and header and plan are consistent. Trusts nothing in it,
// but does not check the tensors' bytes.
Result<Snapshot> open_snapshot(std::span<const std::byte> memory);

}  // namespace ddp::checkpoint
