#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/base/result.h"
#include "worker/checkpoint/directory.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/ddp/state/name_choice.h"
#include "worker/ddp/state/sharded_tensor.h"
#include "worker/ddp/tensors/module_state.h"

// Converts between LibTorch's tensors and the tensors of a checkpoint.
namespace ddp {

// The full names of modules' tensors begin with this.
inline constexpr std::string_view kModulePrefix = "module/";

// A tensor on its way to or from a checkpoint, under its full name ("module/net/conv1.weight").
struct StateTensor {
  std::string name;
  at::Tensor tensor;
  // If each rank has only a part: this rank's part; then `tensor` has no data (at::kMeta).
  std::shared_ptr<const ShardedTensor> parts = nullptr;
};

// The element type in a checkpoint; nullopt for types that safetensors lacks (complex, quantized).
std::optional<checkpoint::TensorType> stored_type(at::ScalarType type);

// Every parameter and buffer under prefix + its name; a shared one under each of its names. The
// tensors are the module's own.
std::vector<StateTensor> module_tensors(const std::string& prefix, const ModuleState& module);

// What is written: the tensor's bytes, row-major on the CPU. `keep` holds them where that took a
// copy. kInvalidArgument, naming the tensor, for an element type or layout that safetensors lacks.
Result<checkpoint::TensorView> view_of(const StateTensor& state, std::vector<at::Tensor>& keep);

// The contents of a checkpoint or a commit, for one rank: the manifest and the tensors. `manifest`
// outlives the object.
class TensorSource {
 public:
  explicit TensorSource(const checkpoint::Manifest& manifest);
  virtual ~TensorSource() = default;
  TensorSource(const TensorSource&) = delete;
  TensorSource& operator=(const TensorSource&) = delete;

  const checkpoint::Manifest& manifest() const { return manifest_; }

  // Nothing if the checkpoint has none of this name. `rank` is kReplicated or the owner.
  const checkpoint::TensorRecord* find(const std::string& name, Rank rank) const;

  // Names of the replicated tensors that begin with `prefix`.
  std::vector<std::string> names_below(const std::string& prefix) const;

  // A new row-major tensor on the CPU.
  virtual Result<at::Tensor> read(const checkpoint::TensorRecord& record) = 0;

  // The same, only to be copied from: it may be memory that cannot be written to. It stays valid
  // without the source.
  virtual Result<at::Tensor> view(const checkpoint::TensorRecord& record) { return read(record); }

 private:
  const checkpoint::Manifest& manifest_;
  std::map<std::pair<Rank, std::string>, const checkpoint::TensorRecord*> index_;
};

// The tensors of a checkpoint on disk, mapped. Reads what is asked for, nothing else, each byte
// once, and checks it: kCorrupt, kIo or kNotFound if the file does not have a tensor as the
// manifest says. `files` and `entry` outlive the object, too.
class FileTensorSource final : public TensorSource {
 public:
  FileTensorSource(checkpoint::FileSystem& files, const checkpoint::Entry& entry,
                   const checkpoint::Manifest& manifest);
  Result<at::Tensor> read(const checkpoint::TensorRecord& record) override;
  // Over the mapped file, which stays mapped as long as the tensor is there.
  Result<at::Tensor> view(const checkpoint::TensorRecord& record) override;

  // For verifying whole files on the way.
  checkpoint::Reader& reader() { return reader_; }

 private:
  checkpoint::Reader reader_;
};

// Changes that are ready to be made, all checked: running them cannot fail.
using Commit = std::function<void()>;

// Reads the tensors of a module and returns the change that copies them into the module. `prefix`
// begins with kModulePrefix. A tensor that only one side has, or that differs in type or shape, is
// kMismatch with its name; without is_strict it is a line in `notes` and stays as it is. Names that
// `choice` does not cover are ignored.
Result<Commit> stage_module(const std::string& prefix, const ModuleState& module,
                            TensorSource& source, bool is_strict, NameChoice& choice,
                            std::vector<std::string>& notes);

}  // namespace ddp
