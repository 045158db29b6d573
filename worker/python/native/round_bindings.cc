#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "common/base/errc.h"
#include "common/wire/flight_ring.h"
#include "worker/ddp/state/run_elastic.h"
#include "worker/python/native/backend.h"
#include "worker/python/native/bindings.h"
#include "worker/python/native/failures.h"
#include "worker/python/native/interpreter.h"
#include "worker/python/native/process_worker.h"
#include "worker/python/native/python_call.h"
#include "worker/python/native/requests.h"
#include "worker/python/native/round_group.h"

// From round to round: ddp::run_elastic() with a Python function.
namespace ddp::python {
namespace {

constexpr std::chrono::milliseconds kLook{1};

// Python has raised SystemExit or KeyboardInterrupt: no failure. No std::exception, so that
// run_elastic() does not report it.
struct ProgramEnds {};

// Calls train(round) -> None, or the text of what it has raised and the cause: "lost" (a rank is),
// "failed" (the program has), "ends".
void train_round(const KeptObject& train, const std::shared_ptr<ProcessGroup>& group) {
  const py::gil_scoped_acquire gil;
  const auto round = std::make_shared<RoundGroup>(group);
  const py::object raised = (*train)(round);
  const Outcome failure = round->failure();
  round->release();
  if (raised.is_none()) return;
  const auto& [text, cause] = raised.cast<std::pair<std::string, std::string>>();
  if (cause == "ends") throw ProgramEnds();
  if (cause == "lost" && failure) {
    // No step boundary comes that would see to a SIGTERM. One that has come acts now.
    end_requests(true);
    throw CollectiveError(*failure);
  }
  throw std::runtime_error(text);
}

template <typename Run>
void with_signals(const Run& run) {
  const WithoutGil without_gil;
  with_torch_errors([&] {
    try {
      run();
    } catch (const CollectiveError&) {
      const py::gil_scoped_acquire gil;
      if (PyErr_Occurred() != nullptr) throw py::error_already_set();
      throw;
    } catch (const ProgramEnds&) {
      // Python raises it again. The other ranks must not wait for this process's end.
      if (made_worker() != nullptr) made_worker()->abort("the program of a rank has ended");
    }
  });
}

// Whether the group has failed, or does so within `limit`: a backend of its own may notice that a
// rank is gone before we do.
bool fails_within(const RoundGroup& round, std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!round.failure()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kLook);
  }
  return true;
}

DdpBackend& backend_of(const c10::intrusive_ptr<c10d::Backend>& backend) {
  return dynamic_cast<DdpBackend&>(*backend);
}

}  // namespace

void bind_rounds(py::module_& module) {
  py::class_<RoundGroup, std::shared_ptr<RoundGroup>>(module, "RoundGroup")
      .def_property_readonly("rank", &RoundGroup::rank)
      .def_property_readonly("size", &RoundGroup::size)
      .def_property_readonly("round", &RoundGroup::round)
      .def_property_readonly("failure",
                             [](const RoundGroup& round) -> std::optional<std::string> {
                               const Outcome failure = round.failure();
                               return failure ? std::make_optional(failure->text) : std::nullopt;
                             })
      .def("fails_within", &fails_within, py::arg("limit"),
           py::call_guard<py::gil_scoped_release>());
  module.def(
      "goes_on_from_round_to_round", [] { return process_worker(true).reconfigurable(); },
      py::call_guard<py::gil_scoped_release>());
  module.def(
      "round_variable", [](const std::string& name) { return process_worker(true).variable(name); },
      py::arg("name"), py::call_guard<py::gil_scoped_release>());
  module.def(
      "run_elastic",
      [](ElasticState& state, py::object train) {
        const KeptObject kept = keep(std::move(train));
        with_signals([&] {
          ddp::run_elastic(
              process_worker(true), state,
              [&](const std::shared_ptr<ProcessGroup>& group) { train_round(kept, group); });
        });
      },
      py::arg("state"), py::arg("train"));
  module.def(
      "run_once",
      [](ElasticState& state, const c10::intrusive_ptr<c10d::Backend>& backend, py::object train) {
        const KeptObject kept = keep(std::move(train));
        with_signals([&] {
          run_round(backend_of(backend).host_group(), state,
                    [&](const std::shared_ptr<ProcessGroup>& group) { train_round(kept, group); });
        });
      },
      py::arg("state"), py::arg("backend"), py::arg("train"));
  module.def(
      "world_round",
      [](const c10::intrusive_ptr<c10d::Backend>& backend, bool has_agent) {
        if (has_agent) process_worker(false);  // Its agent writes checkpoints.
        return std::make_shared<RoundGroup>(backend_of(backend).host_group());
      },
      py::arg("backend"), py::arg("has_agent"), py::call_guard<py::gil_scoped_release>());
  module.def(
      "make_round_backend",
      [](const c10::intrusive_ptr<c10d::Store>& store, const RoundGroup& round,
         std::chrono::milliseconds timeout) -> c10::intrusive_ptr<c10d::Backend> {
        return DdpBackend::make_over(store,
                                     std::dynamic_pointer_cast<runtime::Group>(round.group()),
                                     {timeout, wire::kWorldGroup, {}, false});
      },
      py::arg("store"), py::arg("round"), py::arg("timeout"),
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace ddp::python
