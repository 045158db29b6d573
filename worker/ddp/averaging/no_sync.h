#pragma once

#include "worker/ddp/averaging/reducer.h"

namespace ddp {

// While it lives, backward adds to the local gradients only; the first backward after it reduces
// what has been accumulated. All ranks must use it around the same backwards. Nests.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(Reducer& reducer) : reducer_(reducer), before_(reducer.set_require_sync(false)) {}
  ~NoSync() { reducer_.set_require_sync(before_); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  Reducer& reducer_;
  bool before_;
};

}  // namespace ddp
