#include "worker/python/native/python_state.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "common/base/errc.h"
#include "worker/ddp/state/sharded_tensor.h"
#include "worker/python/native/json_convert.h"

namespace ddp::python {
namespace {

// One that is divided among the ranks, as Python tells of it: (dim, begin, rows, sizes), the
// arguments of divided_along().
using Division =
    std::tuple<std::int64_t, std::int64_t, std::vector<std::int64_t>, std::vector<std::int64_t>>;

// Of a dimension: the first one, and how many.
using Rows = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

NamedTensor named_tensor(const py::tuple& item) {
  NamedTensor named{item[0].cast<std::string>(), item[1].cast<at::Tensor>(), {}};
  if (item.size() == 2) return named;
  const auto& [dim, begin, rows, sizes] = item[2].cast<Division>();
  named.parts =
      std::make_shared<const ShardedTensor>(divided_along(dim, named.tensor, begin, rows, sizes));
  named.tensor = at::empty(sizes, named.tensor.options().device(at::kMeta).requires_grad(false));
  return named;
}

std::vector<NamedTensor> named_tensors(const py::handle& list) {
  std::vector<NamedTensor> result;
  std::map<const at::TensorImpl*, std::size_t> divided;  // By this rank's part: a place in result.
  for (const py::handle each : list) {
    const auto item = py::reinterpret_borrow<py::tuple>(each);
    if (item.size() > 2) {
      const at::TensorImpl* const part = item[1].cast<at::Tensor>().unsafeGetTensorImpl();
      const auto [known, is_new] = divided.emplace(part, result.size());
      if (!is_new) {
        result.push_back(result[known->second]);
        result.back().name = item[0].cast<std::string>();
        continue;
      }
    }
    result.push_back(named_tensor(item));
  }
  return result;
}

class PythonOptimizerState final : public OptimizerState {
 public:
  PythonOptimizerState(KeptObject describe, KeptObject stage)
      : describe_(std::move(describe)), stage_(std::move(stage)) {}

  OptimizerSnapshot snapshot(const std::string& prefix) const override {
    return call(describe_, [&](const py::tuple& result) {
      OptimizerSnapshot snapshot{to_json(result[0]), {}};
      for (const NamedTensor& each : named_tensors(result[1])) {
        snapshot.tensors.push_back({prefix + each.name, each.tensor, each.parts});
      }
      return snapshot;
    });
  }

  Result<Commit> stage(const std::string& prefix, const nlohmann::json& description,
                       TensorSource& source) override {
    std::optional<Error> unread;
    std::map<std::string, std::vector<std::int64_t>> sizes;
    for (const std::string& name : source.names_below(prefix)) {
      sizes[name.substr(prefix.size())] = source.find(name, checkpoint::kReplicated)->shape;
    }
    const auto read = [&](const std::string& name, const std::optional<Rows>& rows) -> at::Tensor {
      const auto* record = source.find(prefix + name, checkpoint::kReplicated);
      if (record == nullptr) throw py::key_error(name);
      auto tensor = rows ? source.view(*record) : source.read(*record);
      if (!tensor) {
        unread = tensor.error();
        throw py::value_error(unread->message);
      }
      if (!rows) return *tensor;
      const auto& [dim, begin, count] = *rows;
      return tensor->narrow(dim, begin, count).clone();
    };
    try {
      const py::gil_scoped_acquire gil;
      const KeptObject apply = call(
          stage_, [](py::object result) { return keep(std::move(result)); }, to_python(description),
          sizes, py::cpp_function(read, py::arg("name"), py::arg("rows") = py::none()));
      return Commit([apply] { call(apply, [](const py::object& /*none*/) {}); });
    } catch (const PythonError& error) {
      if (unread) return *unread;
      return make_error(error.is_value_error ? Errc::kMismatch : Errc::kInvalidArgument, "{}: {}",
                        prefix, error.what());
    }
  }

 private:
  const KeptObject describe_;
  const KeptObject stage_;
};

}  // namespace

ModuleState module_state(const KeptObject& tensors) {
  return call(tensors, [](const py::tuple& result) {
    return state_of(named_tensors(result[0]), named_tensors(result[1]));
  });
}

std::unique_ptr<OptimizerState> make_optimizer_state(KeptObject describe, KeptObject stage) {
  return std::make_unique<PythonOptimizerState>(std::move(describe), std::move(stage));
}

}  // namespace ddp::python
