#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/target.h"
#include "worker/ddp/state/state_dict.h"
#include "worker/python/native/bindings.h"  // First: it includes Python.h.
#include "worker/python/native/json_convert.h"
#include "worker/python/native/value_or_raise.h"

// Checkpoints and safetensors files for programs that have no process group: read as they are, and
// written for others.
namespace ddp::python {
namespace {

using checkpoint::FileSystem;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct ReadCheckpoint {
  checkpoint::ValidSearch::Found found;
  std::vector<std::string> skipped;
  NamedTensors tensors;
};

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The newest valid checkpoint at the path, with its replicated tensors. Every byte is checked.
Result<ReadCheckpoint> read_checkpoint(const std::string& path) {
  auto target = checkpoint::find_target(path);
  if (!target) return target.error();
  std::ostringstream passed_over;
  auto found = checkpoint::newest_valid(*target, passed_over);
  std::vector<std::string> skipped = lines_of(passed_over.str());
  if (!found) {
    Error error = found.error();
    for (const std::string& line : skipped) error.message += "\n" + line;
    return error;
  }
  ReadCheckpoint read{std::move(*found), std::move(skipped), {}};
  FileTensorSource source(checkpoint::posix_file_system(), read.found.entry, read.found.manifest);
  for (const checkpoint::TensorRecord& record : read.found.manifest.tensors) {
    if (record.rank != checkpoint::kReplicated) continue;
    auto tensor = source.view(record);
    if (!tensor) return tensor.error();
    read.tensors.emplace_back(record.name, std::move(*tensor));
  }
  return read;
}

struct StoredTensor {
  std::string type;
  std::vector<std::int64_t> shape;
  at::Tensor bytes;
};

Result<std::map<std::string, StoredTensor>> read_safetensors(const std::string& path) {
  auto file = checkpoint::posix_file_system().map_file(path);
  if (!file) return file.error();
  auto header = checkpoint::read_safetensors_header(**file, path);
  if (!header) return header.error();
  if (auto read = (*file)->fetch(0, (*file)->bytes().size()); !read) return read.error();
  std::map<std::string, StoredTensor> tensors;
  for (checkpoint::TensorEntry& entry : header->tensors) {
    void* const data = const_cast<std::byte*>((*file)->bytes().data()) + entry.begin;
    const auto size = static_cast<std::int64_t>(entry.end - entry.begin);
    at::Tensor bytes = at::from_blob(
        data, {size}, [kept = *file](void*) {}, at::TensorOptions().dtype(at::kByte));
    tensors[std::move(entry.name)] = {std::string(tensor_type_name(entry.type)),
                                      std::move(entry.shape), std::move(bytes)};
  }
  return tensors;
}

Result<void> write_safetensors(const std::string& path, const NamedTensors& tensors,
                               const std::map<std::string, std::string>& metadata) {
  std::vector<checkpoint::TensorView> views;
  std::vector<at::Tensor> keep;
  for (const auto& [name, tensor] : tensors) {
    auto view = view_of({name, tensor}, keep);
    if (!view) return view.error();
    views.push_back(std::move(*view));
  }
  auto written = checkpoint::write_safetensors(checkpoint::posix_file_system(), path,
                                               std::move(views), metadata);
  if (!written) return written.error();
  return {};
}

}  // namespace

void bind_checkpoints(py::module_& module) {
  module.def(
      "read_checkpoint",
      [](const std::string& path) {
        auto read = [&] {
          const py::gil_scoped_release without_gil;
          return read_checkpoint(path);
        }();
        ReadCheckpoint checkpoint = value_or_raise(std::move(read));
        py::dict tensors;
        for (auto& [name, tensor] : checkpoint.tensors) tensors[py::str(name)] = std::move(tensor);
        py::dict result;
        result["path"] = checkpoint.found.entry.path;
        result["step"] = checkpoint.found.entry.step;
        result["skipped"] = checkpoint.skipped;
        result["state"] = to_python(checkpoint.found.manifest.state);
        result["tensors"] = tensors;
        return result;
      },
      py::arg("path"));
  module.def(
      "read_safetensors",
      [](const std::string& path) {
        auto read = [&] {
          const py::gil_scoped_release without_gil;
          return read_safetensors(path);
        }();
        py::dict result;
        for (auto& [name, tensor] : value_or_raise(std::move(read))) {
          result[py::str(name)] =
              py::make_tuple(tensor.type, tensor.shape, std::move(tensor.bytes));
        }
        return result;
      },
      py::arg("path"));
  module.def(
      "write_safetensors",
      [](const std::string& path, const NamedTensors& tensors,
         const std::map<std::string, std::string>& metadata) {
        const py::gil_scoped_release without_gil;
        auto written = write_safetensors(path, tensors, metadata);
        const py::gil_scoped_acquire gil;
        value_or_raise(std::move(written));
      },
      py::arg("path"), py::arg("tensors"), py::arg("metadata"));
}

}  // namespace ddp::python
