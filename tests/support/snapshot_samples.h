#pragma once

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/checkpoint_samples.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/checkpoint/snapshot_memory.h"

namespace ddp::test {

// One save of a small job; its contents depend on `salt`. `elements` is the size of the largest
// tensor, an F32 of every rank.
struct SampleSave {
  std::string directory;
  std::string save_id;
  std::int64_t step = 1;
  std::uint64_t salt = 1;
  int world_size = 1;
  std::int64_t elements = 16;
  checkpoint::Retention retention = {};
  std::uint64_t bytes_per_second = 0;
  std::string job_id = "sample";
};

// A rank's share and the bytes that it refers to.
struct SampleShare {
  checkpoint::SnapshotPlan plan;
  std::vector<SampleTensor> tensors;  // SnapshotTensor::source is an index into it.

  // Not in a snapshot. The share outlives it.
  checkpoint::Snapshot live() const {
    checkpoint::Snapshot snapshot{plan, {}};
    for (const checkpoint::SnapshotFile& file : plan.files) {
      auto& spans = snapshot.bytes.emplace_back();
      for (const auto& tensor : file.tensors) spans.push_back(tensors[tensor.source].view().bytes);
    }
    return snapshot;
  }
};

// Each rank writes a replicated tensor of its own and two of per-rank state; rank 1 has none of the
// latter.
inline SampleShare share_of(const SampleSave& save, Rank rank) {
  using namespace checkpoint;
  SampleShare share;
  SnapshotPlan& plan = share.plan;
  plan.directory = save.directory;
  plan.save_id = save.save_id;
  plan.job_id = save.job_id;
  plan.step = save.step;
  plan.epoch = 3;
  plan.round = 2;
  plan.world_size = save.world_size;
  plan.rank = rank;
  if (rank == 0) plan.state = {{"salt", save.salt}};
  plan.rank_state = {{"rank", rank}, {"salt", save.salt}};
  plan.retention = save.retention;
  plan.bytes_per_second = save.bytes_per_second;
  plan.files = {{shard_file_name(rank), kReplicated, {}}, {rank_file_name(rank), rank, {}}};
  const auto add = [&](SnapshotFile& file, std::string name, TensorType type,
                       std::vector<std::int64_t> shape) {
    SnapshotTensor tensor;
    tensor.name = name;
    tensor.type = type;
    tensor.shape = shape;
    tensor.source = share.tensors.size();
    file.tensors.push_back(std::move(tensor));
    share.tensors.emplace_back(std::move(name), type, std::move(shape),
                               save.salt * 100 + static_cast<std::uint64_t>(rank));
  };
  add(plan.files[0], "module/m/w" + std::to_string(rank), TensorType::kF32, {save.elements});
  if (rank != 1) {
    add(plan.files[1], "rng/cpu", TensorType::kU8, {5});
    add(plan.files[1], "n", TensorType::kI64, {});
  }
  return share;
}

// The same as a sealed snapshot, as a worker hands it to its agent.
inline checkpoint::SnapshotMemory snapshot_of(const SampleShare& share) {
  using namespace checkpoint;
  auto layout = lay_out(share.plan);
  if (!layout) throw std::runtime_error(layout.error().message);
  auto made = SnapshotMemory::create(layout->bytes);
  if (!made) throw std::runtime_error(made.error().message);
  const std::span<std::byte> memory = made->writable();
  unseal_snapshot(memory);
  for (const SnapshotFile& file : layout->plan.files) {
    for (const SnapshotTensor& tensor : file.tensors) {
      const auto bytes = share.tensors[tensor.source].view().bytes;
      if (!bytes.empty()) std::memcpy(memory.data() + tensor.offset, bytes.data(), bytes.size());
    }
  }
  seal_snapshot(memory, *layout);
  return std::move(*made);
}

// What is wrong with a checkpoint of such a save; empty if everything is there, bit for bit.
inline std::string fault_of(checkpoint::FileSystem& files,
                            const checkpoint::ValidSearch::Found& found, const SampleSave& save) {
  using namespace checkpoint;
  const Manifest& manifest = found.manifest;
  if (manifest.step != save.step || manifest.save_id != save.save_id || manifest.epoch != 3 ||
      manifest.round != 2 || manifest.world_size != save.world_size) {
    return "another save";
  }
  if (manifest.state != nlohmann::json{{"salt", save.salt}}) return "another state";
  std::size_t tensors = 0;
  for (Rank rank = 0; rank < save.world_size; ++rank) {
    const SampleShare share = share_of(save, rank);
    if (manifest.rank_state[static_cast<std::size_t>(rank)] != share.plan.rank_state) {
      return "another state of rank " + std::to_string(rank);
    }
    tensors += share.tensors.size();
    for (const SnapshotFile& file : share.plan.files) {
      if (file.tensors.empty()) continue;
      const std::string path = join_path(found.entry.path, file.name);
      auto opened = files.open_file(path);
      if (!opened) return opened.error().message;
      auto header = read_safetensors_header(**opened, path);
      if (!header) return header.error().message;
      for (const SnapshotTensor& tensor : file.tensors) {
        const TensorEntry* entry = header->find(tensor.name);
        if (entry == nullptr) return tensor.name + " is not in " + path;
        std::string bytes(entry->end - entry->begin, '\0');
        auto read = (*opened)->read_at(entry->begin, std::as_writable_bytes(std::span(bytes)));
        if (!read || bytes != share.tensors[tensor.source].bytes) return tensor.name + " differs";
      }
    }
  }
  if (manifest.tensors.size() != tensors) return "another number of tensors";
  return "";
}

}  // namespace ddp::test
