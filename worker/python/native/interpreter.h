#pragma once

#include <optional>

#include "common/wait/wait_interrupt.h"

namespace ddp::python {

// While the object lives, a wait of this thread ends soon after Python has a signal to handle whose
// handler raises: KeyboardInterrupt of Ctrl-C, for example. Does nothing on threads other than
// Python's main thread, which handles all signals. The GIL must not be held.
class SignalCheck {
 public:
  SignalCheck();
  SignalCheck(const SignalCheck&) = delete;
  SignalCheck& operator=(const SignalCheck&) = delete;
  // Raises what the handler has raised, if anything.
  void rethrow() const;
  // The same after a wait that has succeeded: the handler may have raised when the other ranks
  // could no longer be stopped. Takes the GIL only for that.
  void rethrow_late() const {
    if (raised_) rethrow();
  }

 private:
  bool raised_ = false;
  std::optional<WaitInterrupt> interrupt_;
};

// Whether Python has a signal to handle whose handler raises; what it has raised stays to be
// raised. False on threads other than Python's main thread. The GIL must not be held.
bool has_signal();

// Raises it, if there is one.
void raise_signal();

// Releases the GIL while the object lives, if this thread holds it.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* saved_ = nullptr;
};

}  // namespace ddp::python
