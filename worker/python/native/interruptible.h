#pragma once

#include <type_traits>

#include "worker/python/native/failures.h"
#include "worker/python/native/interpreter.h"

namespace ddp::python {

// What `call` returns, which waits for other ranks. Releases the GIL if this thread holds it.
// Ctrl-C ends the wait. Throws as with_torch_errors() does, and what a signal's handler has raised.
template <typename Call>
auto interruptible(const Call& call) {
  const WithoutGil without_gil;
  const SignalCheck check;
  return with_torch_errors([&] {
    try {
      if constexpr (std::is_void_v<decltype(call())>) {
        call();
        check.rethrow_late();
      } else {
        auto result = call();
        check.rethrow_late();
        return result;
      }
    } catch (const CollectiveError&) {
      check.rethrow();
      throw;
    }
  });
}

}  // namespace ddp::python
