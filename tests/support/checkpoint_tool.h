#pragma once

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/checkpoint_samples.h"
#include "tests/support/temp_dir.h"
#include "worker/checkpoint/checksum.h"
#include "worker/checkpoint/tool/tool.h"

namespace ddp::test {

// A tensor of a sample checkpoint.
struct OwnedSample {
  SampleTensor tensor;
  Rank rank = checkpoint::kReplicated;
};

// Publishes a checkpoint with these tensors, as two ranks would: replicated tensors in two shards,
// and those of one rank in that rank's file. `manifest` has the step and the values.
inline Result<checkpoint::Entry> publish_tensors(checkpoint::FileSystem& files,
                                                 checkpoint::Directory& directory,
                                                 checkpoint::Manifest manifest,
                                                 const std::vector<OwnedSample>& tensors) {
  using namespace checkpoint;
  auto temporary = directory.begin(manifest.step, "unique");
  if (!temporary) return temporary.error();
  std::map<std::string, std::vector<const OwnedSample*>> by_file;
  int dealt = 0;
  for (const OwnedSample& item : tensors) {
    const bool is_replicated = item.rank == kReplicated;
    by_file[fmt::format("{}-{:05}.safetensors", is_replicated ? "shard" : "rank",
                        is_replicated ? dealt++ % 2 : item.rank)]
        .push_back(&item);
  }
  for (const auto& [name, items] : by_file) {
    std::vector<TensorView> views;
    for (const OwnedSample* item : items) views.push_back(item->tensor.view());
    auto written = write_safetensors(files, join_path(*temporary, name), views, {{"by", "a test"}});
    if (!written) return written.error();
    manifest.files.push_back({name, written->bytes, written->checksum});
    for (const OwnedSample* item : items) {
      const SampleTensor& tensor = item->tensor;
      manifest.tensors.push_back(
          {tensor.name, item->rank, name, tensor.type, tensor.shape, checksum_of(tensor.bytes)});
    }
  }
  return directory.publish(*temporary, manifest);
}

// A folder on the real disk, and the command ddp-checkpoint run in this process.
class CheckpointToolTest : public ::testing::Test {
 protected:
  int run(const std::vector<std::string>& arguments) {
    std::ostringstream out;
    std::ostringstream err;
    const int status = checkpoint::run_tool(arguments, out, err);
    out_ = out.str();
    err_ = err.str();
    return status;
  }

  // In the folder of checkpoints.
  std::string path(const std::string& name = "") const { return folder_.path() / "ckpt" / name; }
  // Beside it.
  std::string file(const std::string& name) const { return folder_.path() / name; }

  // Two parameters, a buffer, momentum, a generator's state for each of two ranks; `salt` is that
  // of the first parameter.
  std::vector<OwnedSample> usual_tensors(std::uint64_t salt = 1) const {
    using enum checkpoint::TensorType;
    return {{{"module/net/conv.weight", kF32, {4, 3, 2}, salt}},
            {{"module/net/conv.bias", kF16, {4}, 1}},
            {{"module/net/bn.num_batches_tracked", kI64, {}, 1}},
            {{"optimizer/sgd/conv.weight/momentum_buffer", kF32, {4, 3, 2}, 3}},
            {{"rng/cpu", kU8, {16}, 4}, 0},
            {{"rng/cpu", kU8, {16}, 5}, 1}};
  }

  std::string publish(std::int64_t step, const std::vector<OwnedSample>& tensors,
                      const nlohmann::json& values = {{"position", 7}}) {
    checkpoint::Manifest manifest;
    manifest.step = step;
    manifest.epoch = 1;
    manifest.world_size = 2;
    manifest.state = {{"values", values}, {"optimizers", {{"sgd", {{"lr", 0.1}}}}}};
    manifest.rank_state = {nlohmann::json::object(), nlohmann::json::object()};
    EXPECT_TRUE(directory_.prepare());
    auto entry = publish_tensors(checkpoint::posix_file_system(), directory_, manifest, tensors);
    EXPECT_TRUE(entry) << entry.error().message;
    return entry->path;
  }

  TempDir folder_;
  checkpoint::Directory directory_{checkpoint::posix_file_system(), folder_.path() / "ckpt"};
  std::string out_;
  std::string err_;
};

}  // namespace ddp::test
