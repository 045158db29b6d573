#include <unistd.h>

#include <cmath>
#include <optional>
#include <string>

#include "worker/python/native/bindings.h"  // First: it includes Python.h.
#include "worker/python/native/process_worker.h"

// What a process of a job tells its agent, and hears from it.
namespace ddp::python {
namespace {

ElasticWorker& worker() { return process_worker(false); }

}  // namespace

void bind_worker(py::module_& module) {
  using ReleaseGil = py::call_guard<py::gil_scoped_release>;
  module.def(
      "has_agent", [] { return worker().channel().connected(); }, ReleaseGil());
  module.def(
      "progress",
      [](std::int64_t step, std::optional<double> loss, std::optional<double> samples_per_second) {
        ControlChannel& channel = worker().channel();
        if (!loss && !samples_per_second) {
          channel.progress(step);
        } else {
          channel.progress(step, loss.value_or(std::nan("")), samples_per_second.value_or(0));
        }
      },
      py::arg("step"), py::arg("loss"), py::arg("samples_per_second"), ReleaseGil());
  module.def(
      "checkpoint_requests", [] { return worker().checkpoint_requests(); }, ReleaseGil());
  module.def(
      "report_error",
      [](const std::string& text, bool secondary) { worker().channel().error(text, secondary); },
      py::arg("text"), py::arg("secondary"), ReleaseGil());
}

}  // namespace ddp::python
