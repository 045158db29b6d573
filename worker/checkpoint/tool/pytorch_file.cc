#include "worker/checkpoint/tool/pytorch_file.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "worker/checkpoint/tool/pickle.h"
#include "worker/checkpoint/tool/stored_zip.h"

namespace ddp::checkpoint {
namespace {

// torch's name of the storage for this type; empty if it has none.
std::string_view storage_of(TensorType type) {
  constexpr std::pair<TensorType, std::string_view> kStorages[] = {
      {TensorType::kBool, "BoolStorage"}, {TensorType::kU8, "ByteStorage"},
      {TensorType::kI8, "CharStorage"},   {TensorType::kI16, "ShortStorage"},
      {TensorType::kI32, "IntStorage"},   {TensorType::kI64, "LongStorage"},
      {TensorType::kF16, "HalfStorage"},  {TensorType::kBF16, "BFloat16Storage"},
      {TensorType::kF32, "FloatStorage"}, {TensorType::kF64, "DoubleStorage"}};
  for (const auto& [known, storage] : kStorages) {
    if (known == type) return storage;
  }
  return {};
}

std::vector<std::int64_t> row_major_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * std::max<std::int64_t>(shape[i], 1);
  }
  return strides;
}

// torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)
void put_tensor(Pickle& pickle, const TensorView& tensor, std::size_t key) {
  pickle.global("torch._utils", "_rebuild_tensor_v2");
  pickle.mark();
  pickle.mark();
  pickle.text("storage");
  pickle.global("torch", storage_of(tensor.type));
  pickle.text(std::to_string(key));
  pickle.text("cpu");
  pickle.integer(static_cast<std::int64_t>(tensor.bytes.size() / tensor_type_bytes(tensor.type)));
  pickle.tuple();
  pickle.persistent_id();
  pickle.integer(0);
  pickle.integers(tensor.shape);
  pickle.integers(row_major_strides(tensor.shape));
  pickle.no();
  pickle.global("collections", "OrderedDict");
  pickle.empty_tuple();
  pickle.reduce();
  pickle.tuple();
  pickle.reduce();
}

std::string pickle_of(const std::vector<TensorView>& tensors) {
  Pickle pickle;
  pickle.empty_dict();
  if (!tensors.empty()) {
    pickle.mark();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      pickle.text(tensors[i].name);
      put_tensor(pickle, tensors[i], i);
    }
    pickle.set_items();
  }
  return pickle.finish();
}

}  // namespace

Result<void> write_pytorch(FileSystem& files, const std::string& path,
                           const std::vector<TensorView>& tensors) {
  for (const TensorView& tensor : tensors) {
    if (storage_of(tensor.type).empty()) {
      return make_error(Errc::kInvalidArgument,
                        "tensor \"{}\" is {}, for which PyTorch's format has no storage; "
                        "export to safetensors",
                        tensor.name, tensor_type_name(tensor.type));
    }
  }
  auto file = files.create_file(path);
  if (!file) return file.error();
  StoredZip zip(**file);
  // torch accepts any name for the folder of all records, and uses this one itself.
  if (auto added = zip.add("archive/data.pkl", pickle_of(tensors)); !added) return added;
  if (auto added = zip.add("archive/byteorder", "little"); !added) return added;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto added = zip.add(fmt::format("archive/data/{}", i), tensors[i].bytes);
    if (!added) return added;
  }
  if (auto added = zip.add("archive/version", "3\n"); !added) return added;
  if (auto finished = zip.finish(); !finished) return finished;
  if (auto synced = (*file)->sync(); !synced) return synced;
  return (*file)->close();
}

}  // namespace ddp::checkpoint
