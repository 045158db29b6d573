#include "worker/python/native/interpreter.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <torch/csrc/utils/pybind.h>

#include "common/base/clock.h"

namespace ddp::python {
namespace {

// Python handles signals on the thread that started the interpreter, which is the process's first
// in every program that is not embedded.
bool is_main_thread() { return ::getpid() == static_cast<pid_t>(::syscall(SYS_gettid)); }

bool is_interrupted() {
  const py::gil_scoped_acquire gil;
  return PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0;
}

// Asks Python now and then: another thread may hold the GIL for milliseconds.
class SignalLook {
 public:
  explicit SignalLook(bool& raised) : raised_(raised) {}
  bool operator()() {
    const TimePoint now = Clock::now();
    if (now < next_) return false;
    next_ = now + WaitInterrupt::kLook;
    if (!is_interrupted()) return false;
    raised_ = true;
    return true;
  }

 private:
  bool& raised_;
  TimePoint next_ = Clock::now() + WaitInterrupt::kLook;
};

}  // namespace

bool has_signal() { return is_main_thread() && is_interrupted(); }

void raise_signal() {
  if (!has_signal()) return;
  const py::gil_scoped_acquire gil;
  throw py::error_already_set();
}

SignalCheck::SignalCheck() {
  if (is_main_thread() && !WaitInterrupt::set()) {
    interrupt_.emplace(SignalLook(raised_), WaitInterrupt::Covers::kOperationsToo);
  }
}

void SignalCheck::rethrow() const {
  if (!interrupt_) return;
  const py::gil_scoped_acquire gil;
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
}

WithoutGil::WithoutGil() {
  if (PyGILState_Check() != 0) saved_ = PyEval_SaveThread();
}

WithoutGil::~WithoutGil() {
  if (saved_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(saved_));
}

}  // namespace ddp::python
