#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "worker/ddp/state/checkpointer.h"
#include "worker/ddp/state/elastic_state.h"
#include "worker/python/native/bindings.h"
#include "worker/python/native/interruptible.h"
#include "worker/python/native/json_convert.h"
#include "worker/python/native/process_worker.h"
#include "worker/python/native/python_state.h"
#include "worker/python/native/round_group.h"
#include "worker/python/native/shared_event_file.h"
#include "worker/python/native/value_or_raise.h"

// ElasticState and Checkpointer for Python's modules and optimizers.
namespace ddp::python {
namespace {

// What both classes register.
template <typename Keeper, typename Class>
void bind_registration(Class& bound) {
  bound
      .def(
          "add_module",
          [](Keeper& keeper, std::string name, py::object tensors) {
            const KeptObject kept = keep(std::move(tensors));
            keeper.add_module(std::move(name), [kept] { return module_state(kept); });
          },
          py::arg("name"), py::arg("tensors"))
      .def(
          "add_optimizer",
          [](Keeper& keeper, std::string name, py::object describe, py::object stage) {
            keeper.add_optimizer(std::move(name), make_optimizer_state(keep(std::move(describe)),
                                                                       keep(std::move(stage))));
          },
          py::arg("name"), py::arg("describe"), py::arg("stage"))
      .def("add_rng", [](Keeper& keeper) { keeper.add_rng(); })
      .def(
          "add_value",
          [](Keeper& keeper, std::string name, py::object save, py::object load, bool per_rank) {
            const KeptObject saving = keep(std::move(save));
            const KeptObject loading = keep(std::move(load));
            keeper.add_value(
                std::move(name),
                [saving] {
                  return call(saving, [](const py::object& value) { return to_json(value); });
                },
                [loading](const nlohmann::json& value) {
                  const py::gil_scoped_acquire gil;
                  call(
                      loading, [](const py::object& /*none*/) {}, to_python(value));
                },
                per_rank);
          },
          py::arg("name"), py::arg("save"), py::arg("load"), py::arg("per_rank"));
}

// One for all rounds: what is still being written outlives them. Never destroyed: with an agent,
// the process's end is its end.
std::shared_ptr<CheckpointWriter>& process_writer() {
  static auto* const writer = new std::shared_ptr<CheckpointWriter>;
  if (!*writer) {
    ControlChannel* const channel = made_worker() == nullptr ? nullptr : &made_worker()->channel();
    *writer = std::make_shared<CheckpointWriter>(channel);
  }
  return *writer;
}

py::dict report_of(const SaveReport& report) {
  static constexpr const char* kStates[] = {"none", "writing", "durable"};
  py::dict result;
  result["state"] = kStates[static_cast<int>(report.state)];
  result["step"] = report.step;
  result["path"] = report.path;
  result["note"] = report.note;
  return result;
}

py::dict report_of(const LoadReport& report) {
  py::dict result;
  result["step"] = report.step;
  result["epoch"] = report.epoch;
  result["world_size"] = report.world_size;
  result["path"] = report.path;
  result["skipped"] = report.skipped;
  result["notes"] = report.notes;
  return result;
}

// Both curves of the checkpoints; last_step: the step after which the training goes on.
void tell_times(Checkpointer& self, const std::shared_ptr<SharedEventFile>& file,
                std::int64_t last_step) {
  self.tell_times(
      {.held =
           [file](std::int64_t step, double seconds) {
             const tensorboard::Scalar scalar{"checkpoint_seconds", seconds};
             value_or_raise(file->add(step, {&scalar, 1}));
           },
       .written =
           [file](std::int64_t step, double seconds) {
             value_or_raise(file->add_late(step, {"checkpoint_write_seconds", seconds}));
           }});
  if (last_step > 0) self.tell_newest(last_step);
}

void bind_elastic_state(py::module_& module) {
  py::class_<ElasticState> state(module, "State");
  bind_registration<ElasticState>(state);
  state.def(py::init<>())
      .def(
          "set_commit_pace",
          [](ElasticState& self, std::int64_t every, double share) {
            self.set_commit_pace({every, share});
          },
          py::arg("every"), py::arg("share"))
      .def(
          "commit",
          [](ElasticState& self, std::optional<std::int64_t> step) {
            interruptible([&] { self.commit(step.value_or(self.step() + 1)); });
          },
          py::arg("step"))
      .def("is_commit_due", &ElasticState::is_commit_due)
      .def("restore", [](ElasticState& self) { interruptible([&] { self.restore(); }); })
      .def_property_readonly("resumed", &ElasticState::resumed);
}

void bind_checkpointer(py::module_& module) {
  py::class_<Checkpointer> checkpointer(module, "Checkpointer");
  bind_registration<Checkpointer>(checkpointer);
  checkpointer
      .def(py::init([](const std::string& directory, int keep, std::int64_t keep_every,
                       bool asynchronous, const RoundGroup& round) {
             CheckpointOptions options;
             options.directory = directory;
             options.keep = keep;
             options.keep_every = keep_every;
             options.asynchronous = asynchronous;
             return std::make_unique<Checkpointer>(std::move(options), round.group(),
                                                   process_writer());
           }),
           py::arg("directory"), py::arg("keep"), py::arg("keep_every"), py::arg("asynchronous"),
           py::arg("round"))
      .def(
          "prepare",
          [](Checkpointer& self) { value_or_raise(interruptible([&] { return self.prepare(); })); })
      .def(
          "save",
          [](Checkpointer& self, std::int64_t step, std::int64_t epoch) {
            return report_of(value_or_raise(interruptible([&] { return self.save(step, epoch); })));
          },
          py::arg("step"), py::arg("epoch"))
      .def("wait",
           [](Checkpointer& self) {
             return report_of(value_or_raise(interruptible([&] { return self.wait(); })));
           })
      .def(
          "load_latest",
          [](Checkpointer& self, bool strict) {
            LoadOptions options;
            options.strict = strict;
            return report_of(
                value_or_raise(interruptible([&] { return self.load_latest(options); })));
          },
          py::arg("strict"))
      .def("tell_times", &tell_times, py::arg("file"), py::arg("last_step"),
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("warnings", &Checkpointer::warnings);
}

}  // namespace

void bind_state(py::module_& module) {
  bind_elastic_state(module);
  bind_checkpointer(module);
  module.def(
      "finish_checkpoints",
      [] {
        if (made_worker() == nullptr) process_writer().reset();  // Waits for its thread.
      },
      py::call_guard<py::gil_scoped_release>());
  module.def(
      "weights_sha256",
      [](py::object tensors) {
        const KeptObject kept = keep(std::move(tensors));
        const py::gil_scoped_release without_gil;
        return weights_sha256(module_state(kept));
      },
      py::arg("tensors"));
}

}  // namespace ddp::python
