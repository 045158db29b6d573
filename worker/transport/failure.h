#pragma once

#include <optional>
#include <string>
#include <system_error>

#include "common/base/ids.h"

namespace ddp {

// Why a group cannot go on: the first cause, which every rank reports.
struct Failure {
  std::error_code code;  // kTimeout, kPeerLost, kAborted, kMismatch, kProtocol.
  Rank suspect = -1;     // The rank to blame, -1 if it is not known.
  std::string text;
  bool told = false;  // Another rank or the agent found the cause; the text needs nothing added.
};

// Nothing means success.
using Outcome = std::optional<Failure>;

}  // namespace ddp
