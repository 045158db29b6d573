#pragma once

#include <cstdint>

#include "worker/collectives/all_reduce.h"
#include "worker/collectives/entry.h"
#include "worker/collectives/operation.h"
#include "worker/transport/transport.h"

namespace ddp {

// Runs operations one after the other over a transport. One thread at a time.
//
// A failed operation leaves its buffers undefined and the transport of no further use. A failure
// that this rank found has no operation's name in its text; `told` says that another rank found it.
class Collectives {
 public:
  explicit Collectives(Transport& transport);

  // kTimeout says which ranks had arrived; kMismatch says which ranks called what.
  Outcome run(const Operation& operation);

 private:
  Outcome run_small(const Operation& operation, const Entry& entry);
  Outcome enter(const Operation& operation, Entry& entry);
  template <typename Stream>
  Outcome run_stream(const Operation& operation, Stream&& stream);
  bool is_small(const Operation& operation) const;
  Failure stalled(const Operation& operation) const;

  Transport& transport_;
  AllReduceScratch scratch_;
  std::uint32_t number_;  // Operations of the segment so far.
  std::uint32_t chunks_;  // Value of all this rank's chunk flags between operations.
};

}  // namespace ddp
