#include "worker/python/native/python_state.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/errc.h"
#include "worker/python/native/json_convert.h"

namespace ddp::python {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class PythonOptimizerState final : public OptimizerState {
 public:
  PythonOptimizerState(KeptObject describe, KeptObject stage)
      : describe_(std::move(describe)), stage_(std::move(stage)) {}

  OptimizerSnapshot snapshot(const std::string& prefix) const override {
    return call(describe_, [&](const py::tuple& result) {
      OptimizerSnapshot snapshot{to_json(result[0]), {}};
      for (auto& [name, tensor] : result[1].cast<NamedTensors>()) {
        snapshot.tensors.push_back({prefix + name, tensor});
      }
      return snapshot;
    });
  }

  Result<Commit> stage(const std::string& prefix, const nlohmann::json& description,
                       TensorSource& source) override {
    std::optional<Error> unread;
    std::vector<std::string> names = source.names_below(prefix);
    for (std::string& name : names) name.erase(0, prefix.size());
    const auto read = [&](const std::string& name) -> at::Tensor {
      const auto* record = source.find(prefix + name, checkpoint::kReplicated);
      if (record == nullptr) throw py::key_error(name);
      auto tensor = source.read(*record);
      if (tensor) return *tensor;
      unread = tensor.error();
      throw py::value_error(unread->message);
    };
    try {
      const py::gil_scoped_acquire gil;
      const KeptObject apply = call(
          stage_, [](py::object result) { return keep(std::move(result)); }, to_python(description),
          names, py::cpp_function(read));
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
    return state_of(result[0].cast<NamedTensors>(), result[1].cast<NamedTensors>());
  });
}

std::unique_ptr<OptimizerState> make_optimizer_state(KeptObject describe, KeptObject stage) {
  return std::make_unique<PythonOptimizerState>(std::move(describe), std::move(stage));
}

}  // namespace ddp::python
