#pragma once

#include "launcher/hosts/parent_link.h"

namespace ddp::hosts {

// Runs a ddp-run whose order names more hosts than its own. It starts its own part and the other
// hosts' parts, passes signals down, and passes output and reports up, until all have ended. Gives
// the exit status.
int run_branch(ParentLink& parent);

}  // namespace ddp::hosts
