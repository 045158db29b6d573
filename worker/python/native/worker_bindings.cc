#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "worker/python/native/bindings.h"
#include "worker/python/native/failures.h"
#include "worker/python/native/process_worker.h"
#include "worker/python/native/requests.h"
#include "worker/runtime/trace.h"
#include "worker/runtime/write_error_file.h"

// What a process of a job tells its agent, and hears from it.
namespace ddp::python {
namespace {

// A signal that nothing in this process handles, and nobody sends; 0 if there is none.
int unused_signal() {
  for (int number = SIGRTMAX; number >= SIGRTMIN; --number) {
    struct sigaction action {};
    if (::sigaction(number, nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 &&
        action.sa_handler == SIG_DFL) {
      return number;
    }
  }
  return 0;
}

}  // namespace

void bind_worker(py::module_& module) {
  using ReleaseGil = py::call_guard<py::gil_scoped_release>;
  module.def(
      "progress",
      [](std::int64_t step, double loss, double samples_per_second, std::int64_t total_steps) {
        process_channel().progress(step, loss, samples_per_second, total_steps);
      },
      py::arg("step"), py::arg("loss"), py::arg("samples_per_second"), py::arg("total_steps"),
      ReleaseGil());
  module.def(
      "own_request",
      [](bool catches_usr1, bool catches_term) {
        return static_cast<int>(own_request(catches_usr1, catches_term));
      },
      py::arg("catches_usr1"), py::arg("catches_term"), ReleaseGil());
  module.def("take_stop_request", &take_stop_request, ReleaseGil());
  module.def("leave_requests_to", &leave_requests_to, py::arg("worker"));
  module.def("write_error_file", &runtime::write_error_file, py::arg("message"),
             py::arg("callstack"), py::arg("secondary"), ReleaseGil());
  module.def(
      "step_ended", [](std::int64_t step) { runtime::trace_step_ends(step, Clock::now()); },
      py::arg("step"));
  module.def("is_traced", &runtime::is_traced);
  module.def(
      "trace_span",
      [](const std::string& lane, const std::string& name, std::int64_t begin_ns,
         std::int64_t end_ns, std::int64_t index) {
        const auto at = [](std::int64_t ns) { return TimePoint(std::chrono::nanoseconds(ns)); };
        runtime::trace_span(runtime::program_lane(lane), name, at(begin_ns), at(end_ns), index);
      },
      py::arg("lane"), py::arg("name"), py::arg("begin_ns"), py::arg("end_ns"), py::arg("index"));
  module.def("is_consequence", &is_consequence, py::arg("text"));
  module.def("unused_signal", &unused_signal);
  module.def("set_stack_signal", &set_stack_signal, py::arg("number"));
}

}  // namespace ddp::python
