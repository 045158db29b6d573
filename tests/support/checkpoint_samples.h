#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "worker/checkpoint/directory.h"
#include "worker/checkpoint/safetensors.h"

namespace ddp::test {

// A tensor that owns its bytes; its name, size and `salt` determine them.
struct SampleTensor {
  SampleTensor(std::string of_name, checkpoint::TensorType of_type,
               std::vector<std::int64_t> of_shape, std::uint64_t salt = 0)
      : name(std::move(of_name)), type(of_type), shape(std::move(of_shape)) {
    bytes.resize(checkpoint::tensor_bytes(type, shape).value());
    std::uint64_t state = salt * 1000003 + name.size() + 12345;
    for (char& byte : bytes) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<char>(state >> 56);
    }
  }

  checkpoint::TensorView view() const {
    return {name, type, shape, std::as_bytes(std::span(bytes.data(), bytes.size()))};
  }

  std::string name;
  checkpoint::TensorType type;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

// "name TYPE [shape] bytes": a line that the Python scripts beside the tests print and read.
inline std::string line_of(const SampleTensor& tensor) {
  std::string shape;
  for (const std::int64_t size : tensor.shape) shape += std::to_string(size) + ",";
  std::string bytes;
  for (const char byte : tensor.bytes) {
    bytes += fmt::format("{:02x}", static_cast<unsigned>(static_cast<unsigned char>(byte)));
  }
  return fmt::format("{} {} [{}] {}\n", tensor.name, checkpoint::tensor_type_name(tensor.type),
                     shape, bytes.empty() ? "-" : bytes);
}

inline std::vector<checkpoint::TensorView> views_of(const std::vector<SampleTensor>& tensors) {
  std::vector<checkpoint::TensorView> views;
  for (const SampleTensor& tensor : tensors) views.push_back(tensor.view());
  return views;
}

// Removes the checkpoints that are no longer needed. Returns what could not be removed.
inline std::vector<std::string> prune(checkpoint::Directory& directory,
                                      const checkpoint::Retention& retention,
                                      const checkpoint::Entry& newest) {
  std::vector<std::string> complaints = directory.retire(retention, newest);
  for (std::string& line : directory.remove_retired()) complaints.push_back(std::move(line));
  return complaints;
}

// Writes and publishes a small checkpoint of two files with contents that depend on `salt`. Like
// Checkpointer, it also makes the link and removes old checkpoints. On failure it removes the
// temporary folder.
inline Result<checkpoint::Entry> publish_sample(checkpoint::FileSystem& files,
                                                checkpoint::Directory& directory, std::int64_t step,
                                                std::uint64_t salt, int keep = 0) {
  using namespace checkpoint;
  auto temporary = directory.begin(step, "unique-" + std::to_string(salt));
  if (!temporary) return temporary.error();
  Manifest manifest;
  manifest.step = step;
  manifest.rank_state = {nlohmann::json::object()};
  manifest.state = {{"salt", salt}};
  const auto fill = [&]() -> Result<Entry> {
    for (const Rank rank : {kReplicated, 0}) {
      const std::string name =
          rank == kReplicated ? "shard-00000.safetensors" : "rank-00000.safetensors";
      const std::vector<SampleTensor> tensors = {{"a", TensorType::kF32, {3, 5}, salt},
                                                 {"b", TensorType::kI64, {}, salt}};
      auto written = write_safetensors(files, join_path(*temporary, name), views_of(tensors),
                                       {{"by", "a test"}});
      if (!written) return written.error();
      manifest.files.push_back({name, written->bytes, written->checksum});
      for (const SampleTensor& tensor : tensors) {
        std::string checksum;
        for (const auto& item : written->tensors) {
          if (item.name == tensor.name) checksum = item.checksum;
        }
        manifest.tensors.push_back({tensor.name, rank, name, tensor.type, tensor.shape, checksum});
      }
    }
    return directory.publish(*temporary, manifest);
  };
  auto entry = fill();
  if (!entry) {
    (void)directory.discard(*temporary);
    return entry;
  }
  (void)directory.update_latest(*entry);
  (void)prune(directory, {keep, 0}, *entry);
  return entry;
}

// The next checkpoint of which every byte is right, rejecting others.
inline Result<std::optional<checkpoint::ValidSearch::Found>> next_valid(
    const checkpoint::Directory& directory, checkpoint::ValidSearch& search) {
  for (;;) {
    auto found = search.next();
    if (!found || !*found) return found;
    const auto verified = directory.verify((*found)->entry);
    if (verified) return found;
    search.reject((*found)->entry, verified.error().message);
  }
}

// The newest of them; `skipped` gets one line for each one passed over.
inline Result<std::optional<checkpoint::ValidSearch::Found>> open_newest_valid(
    checkpoint::Directory& directory, std::vector<std::string>* skipped = nullptr) {
  checkpoint::ValidSearch search(directory);
  auto found = next_valid(directory, search);
  if (skipped != nullptr) *skipped = search.skipped();
  return found;
}

// The salt of a checkpoint that a search found; -1 for none.
inline std::int64_t salt_of(const std::optional<checkpoint::ValidSearch::Found>& found) {
  return found ? found->manifest.state.at("salt").get<std::int64_t>() : -1;
}

}  // namespace ddp::test
